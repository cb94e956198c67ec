"""Tiny transformers models with random weights: the same one with several attentions."""

from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor

from headwise import hf

VOCAB = 61
_TEXT = {"vocab_size": VOCAB, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_WIDE = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "max_position_embeddings": 64,
}
_GROUPED = {**_TEXT, **_WIDE, "num_key_value_heads": 2, "head_dim": 4}
_PAIR = {
    **_TEXT,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 6,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "decoder_start_token_id": 1,
}


@dataclass(frozen=True)
class Family:
    """One kind of model: its configuration class, its head, its numbers, what else compares."""

    config: str
    auto: str
    numbers: dict[str, Any] = field(default_factory=dict)
    against: str = "sdpa"


FAMILIES = {
    "bert": Family("BertConfig", "AutoModel", {**_TEXT, **_WIDE}),
    "roberta": Family("RobertaConfig", "AutoModel", {**_TEXT, **_WIDE}),
    # Its attention has no attribute is_causal, so nothing may be guessed from one.
    "splinter": Family("SplinterConfig", "AutoModel", {**_TEXT, **_WIDE}, "eager"),
    "modernbert": Family(
        "ModernBertConfig",
        "AutoModel",
        {**_TEXT, **_WIDE, "local_attention": 4, "cls_token_id": 1, "sep_token_id": 2},
    ),
    "gpt2": Family(
        "GPT2Config",
        "AutoModelForCausalLM",
        {**_TEXT, "n_embd": 24, "n_layer": 2, "n_head": 6, "n_positions": 64},
    ),
    "llama": Family("LlamaConfig", "AutoModelForCausalLM", _GROUPED),
    "mistral": Family("MistralConfig", "AutoModelForCausalLM", {**_GROUPED, "sliding_window": 4}),
    "qwen2": Family("Qwen2Config", "AutoModelForCausalLM", _GROUPED),
    "gemma2": Family(
        "Gemma2Config",
        "AutoModelForCausalLM",
        {
            **_GROUPED,
            "sliding_window": 4,
            "query_pre_attn_scalar": 4,
            "attn_logit_softcapping": 2.0,
        },
        "eager",
    ),
    "llama4": Family(
        "Llama4TextConfig",
        "AutoModelForCausalLM",
        {**_GROUPED, "attention_chunk_size": 4, "num_local_experts": 2, "intermediate_size_mlp": 8},
    ),
    "gpt_oss": Family(
        "GptOssConfig",
        "AutoModelForCausalLM",
        {**_GROUPED, "sliding_window": 4, "num_local_experts": 2, "num_experts_per_tok": 1},
        "eager",
    ),
    "t5": Family(
        "T5Config",
        "AutoModelForSeq2SeqLM",
        {
            **_TEXT,
            "d_model": 24,
            "d_kv": 4,
            "d_ff": 40,
            "num_layers": 2,
            "num_heads": 6,
            "decoder_start_token_id": 0,
        },
    ),
    "bart": Family("BartConfig", "AutoModelForSeq2SeqLM", {**_PAIR, "max_position_embeddings": 64}),
    "marian": Family(
        "MarianConfig", "AutoModelForSeq2SeqLM", {**_PAIR, "max_position_embeddings": 64}
    ),
    "whisper": Family(
        "WhisperConfig",
        "AutoModelForSpeechSeq2Seq",
        {
            **_PAIR,
            "num_mel_bins": 8,
            "max_source_positions": 10,
            "max_target_positions": 64,
            "suppress_tokens": None,
            "begin_suppress_tokens": None,
        },
    ),
    "vit": Family(
        "ViTConfig",
        "AutoModel",
        {**_WIDE, "image_size": 8, "patch_size": 2, "num_channels": 3},
    ),
}
DECODERS = [name for name, family in FAMILIES.items() if family.auto == "AutoModelForCausalLM"]
PAIRS = ["t5", "bart", "marian"]
ENCODERS = ["bert", "roberta", "modernbert", "splinter"]


def tiny(name: str, implementation: str = "headwise", **changes: Any) -> Any:
    """Build a model of a family in evaluation mode; the same weights for every implementation."""
    hf.register()
    family = FAMILIES[name]
    config = getattr(transformers, family.config)(**{**family.numbers, **changes})
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = getattr(transformers, family.auto).from_config(
            config, attn_implementation=implementation, experts_implementation="eager"
        )
        for weight in model.parameters():
            if weight.ndim > 1 or not weight.any():
                torch.nn.init.normal_(weight, std=0.3)
    return model.eval()


def both(name: str, **changes: Any) -> tuple[Any, Any]:
    """Return the model through headwise, and through transformers' own attention."""
    return tiny(name, **changes), tiny(name, FAMILIES[name].against, **changes)


def tokens(batch: int = 2, length: int = 11, seed: int = 3) -> Tensor:
    """Return token numbers that are no special ones."""
    return torch.randint(3, VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed))


def padded(side: str, batch: int = 2, length: int = 11, padding: int = 4) -> Tensor:
    """Return a mask with all tokens real in the first sample, and padding in the last one."""
    mask = torch.ones(batch, length, dtype=torch.long)
    if side == "left":
        mask[-1, :padding] = 0
    if side == "right":
        mask[-1, length - padding :] = 0
    return mask


def inputs(name: str, side: str = "none") -> dict[str, Tensor]:
    """Return what a forward pass of the family takes."""
    if name == "vit":
        return {"pixel_values": torch.randn(2, 3, 8, 8)}
    if name == "whisper":
        return {"input_features": torch.randn(2, 8, 20), "decoder_input_ids": tokens(length=5)}
    given = {"input_ids": tokens(), "attention_mask": padded(side)}
    if name in PAIRS:
        given["decoder_input_ids"] = tokens(length=5, seed=4)
    return given


def answer(model: Any, given: dict[str, Tensor]) -> Tensor:
    """Return the logits of a forward pass, or the last hidden state where there are none."""
    out = model(**given)
    found: Tensor = out.logits if hasattr(out, "logits") else out.last_hidden_state
    return found
