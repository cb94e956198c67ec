"""Which families of transformers models are tested, and how each is run: one table for all tests.

The page docs/reference/compatibility.md is written from it, see ``compatibility``.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

VOCAB = 61
_TEXT = {"vocab_size": VOCAB, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_WIDE = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "max_position_embeddings": 64,
}
_BERT = {**_TEXT, **_WIDE}
_GROUPED = {**_BERT, "num_key_value_heads": 2, "head_dim": 4}
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
_WRITTEN_PAIR = {**_PAIR, "max_position_embeddings": 64}
_SPARSE_BLOCKS = {"attention_type": "block_sparse", "block_size": 1, "num_random_blocks": 1}
_IMAGE = {**_WIDE, "image_size": 8, "patch_size": 2, "num_channels": 3}
_CAUSAL, _SEQ2SEQ = "AutoModelForCausalLM", "AutoModelForSeq2SeqLM"

Kind = Literal["encoder", "decoder", "pair", "speech", "image"]


@dataclass(frozen=True)
class Family:
    """One kind of model.

    Attributes:
        config: Its configuration class.
        auto: The class that chooses its head.
        numbers: Its configuration.
        kind: What it reads and writes.
        through: ``"headwise"`` = by ``attn_implementation``; ``"accelerate"`` = its attention is
            code of its own, which ``hf.accelerate`` replaces; ``"left"`` = neither.
        title: Its name on the page; empty = models like it are tested for a rule of ours only.
    """

    config: str
    auto: str
    numbers: dict[str, Any] = field(default_factory=dict)
    kind: Kind = "decoder"
    through: Literal["headwise", "accelerate", "left"] = "headwise"
    title: str = ""


FAMILIES = {
    "bert": Family("BertConfig", "AutoModel", _BERT, "encoder", title="BERT"),
    "roberta": Family("RobertaConfig", "AutoModel", _BERT, "encoder", title="RoBERTa"),
    "xlm_roberta": Family("XLMRobertaConfig", "AutoModel", _BERT, "encoder", title="XLM-RoBERTa"),
    "distilbert": Family(
        "DistilBertConfig",
        "AutoModel",
        {
            **_TEXT,
            "dim": 24,
            "hidden_dim": 40,
            "n_layers": 2,
            "n_heads": 6,
            "max_position_embeddings": 64,
        },
        "encoder",
        title="DistilBERT",
    ),
    "electra": Family(
        "ElectraConfig", "AutoModel", {**_BERT, "embedding_size": 12}, "encoder", title="ELECTRA"
    ),
    "modernbert": Family(
        "ModernBertConfig",
        "AutoModel",
        {**_BERT, "local_attention": 4, "cls_token_id": 1, "sep_token_id": 2},
        "encoder",
        title="ModernBERT",
    ),
    "mpnet": Family(
        "MPNetConfig", "AutoModel", _BERT, "encoder", through="accelerate", title="MPNet"
    ),
    "longformer": Family(
        "LongformerConfig",
        "AutoModel",
        {**_BERT, "attention_window": [4, 4], "sep_token_id": 2},
        "encoder",
        through="accelerate",
        title="Longformer",
    ),
    # More than 7 tokens, so its sparse attention is used.
    "big_bird": Family(
        "BigBirdConfig",
        "AutoModel",
        {**_BERT, **_SPARSE_BLOCKS, "sep_token_id": 2},
        "encoder",
        through="accelerate",
        title="BigBird",
    ),
    # Its attention has no attribute is_causal, so nothing may be guessed from one.
    "splinter": Family("SplinterConfig", "AutoModel", _BERT, "encoder"),
    "clip_text": Family("CLIPTextConfig", "AutoModel", _BERT, "encoder", title="CLIP, text"),
    "clip_vision": Family("CLIPVisionConfig", "AutoModel", _IMAGE, "image", title="CLIP, image"),
    "vit": Family("ViTConfig", "AutoModel", _IMAGE, "image", title="ViT"),
    "gpt2": Family(
        "GPT2Config",
        _CAUSAL,
        {**_TEXT, "n_embd": 24, "n_layer": 2, "n_head": 6, "n_positions": 64},
        title="GPT-2",
    ),
    "gpt_neox": Family("GPTNeoXConfig", _CAUSAL, _BERT, title="GPT-NeoX"),
    "opt": Family(
        "OPTConfig",
        _CAUSAL,
        {
            **_TEXT,
            "hidden_size": 24,
            "word_embed_proj_dim": 24,
            "ffn_dim": 40,
            "num_hidden_layers": 2,
            "num_attention_heads": 6,
            "max_position_embeddings": 64,
        },
        title="OPT",
    ),
    "bloom": Family(
        "BloomConfig",
        _CAUSAL,
        {**_TEXT, "hidden_size": 24, "n_layer": 2, "n_head": 6},
        through="accelerate",
        title="Bloom",
    ),
    "phi": Family("PhiConfig", _CAUSAL, {**_BERT, "num_key_value_heads": 2}, title="Phi"),
    "llama": Family("LlamaConfig", _CAUSAL, _GROUPED, title="Llama"),
    "mistral": Family("MistralConfig", _CAUSAL, {**_GROUPED, "sliding_window": 4}, title="Mistral"),
    "qwen2": Family("Qwen2Config", _CAUSAL, _GROUPED, title="Qwen 2"),
    "qwen3": Family("Qwen3Config", _CAUSAL, _GROUPED, title="Qwen 3"),
    "gemma2": Family(
        "Gemma2Config",
        _CAUSAL,
        {
            **_GROUPED,
            "sliding_window": 4,
            "query_pre_attn_scalar": 4,
            "attn_logit_softcapping": 2.0,
        },
        title="Gemma 2",
    ),
    "gemma3": Family(
        "Gemma3TextConfig",
        _CAUSAL,
        {
            **_GROUPED,
            "sliding_window": 4,
            "query_pre_attn_scalar": 4,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        title="Gemma 3, text",
    ),
    "llama4": Family(
        "Llama4TextConfig",
        _CAUSAL,
        {**_GROUPED, "attention_chunk_size": 4, "num_local_experts": 2, "intermediate_size_mlp": 8},
        title="Llama 4, text",
    ),
    "gpt_oss": Family(
        "GptOssConfig",
        _CAUSAL,
        {**_GROUPED, "sliding_window": 4, "num_local_experts": 2, "num_experts_per_tok": 1},
        title="gpt-oss",
    ),
    "t5": Family(
        "T5Config",
        _SEQ2SEQ,
        {
            **_TEXT,
            "d_model": 24,
            "d_kv": 4,
            "d_ff": 40,
            "num_layers": 2,
            "num_heads": 6,
            "decoder_start_token_id": 0,
        },
        "pair",
        title="T5",
    ),
    "bart": Family("BartConfig", _SEQ2SEQ, _WRITTEN_PAIR, "pair", title="BART"),
    "marian": Family("MarianConfig", _SEQ2SEQ, _WRITTEN_PAIR, "pair", title="Marian"),
    "m2m_100": Family("M2M100Config", _SEQ2SEQ, _WRITTEN_PAIR, "pair", title="M2M100, NLLB"),
    "pegasus": Family("PegasusConfig", _SEQ2SEQ, _WRITTEN_PAIR, "pair", title="Pegasus"),
    "led": Family(
        "LEDConfig",
        _SEQ2SEQ,
        {
            **_PAIR,
            "attention_window": [4, 4],
            "max_encoder_position_embeddings": 64,
            "max_decoder_position_embeddings": 64,
        },
        "pair",
        through="accelerate",
        title="LED",
    ),
    "bigbird_pegasus": Family(
        "BigBirdPegasusConfig",
        _SEQ2SEQ,
        {**_WRITTEN_PAIR, **_SPARSE_BLOCKS},
        "pair",
        through="accelerate",
        title="BigBird-Pegasus",
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
        "speech",
        title="Whisper",
    ),
}

# Attention by code of their own that headwise has no other for.
LEFT = {
    "deberta": Family("DebertaConfig", "AutoModel", _BERT, "encoder", "left", "DeBERTa"),
    "deberta_v2": Family(
        "DebertaV2Config",
        "AutoModel",
        {
            **_BERT,
            "relative_attention": True,
            "position_buckets": 8,
            "pos_att_type": ["p2c", "c2p"],
            "share_att_key": True,
        },
        "encoder",
        "left",
        "DeBERTa-v2, -v3",
    ),
    "xlnet": Family(
        "XLNetConfig",
        "AutoModel",
        {**_TEXT, "d_model": 24, "n_layer": 2, "n_head": 6, "d_inner": 40},
        "encoder",
        "left",
        "XLNet",
    ),
    "falcon": Family("FalconConfig", _CAUSAL, _BERT, "decoder", "left", "Falcon"),
}


def of_kind(*kinds: Kind) -> list[str]:
    """Return the names of the families of some kinds."""
    return [name for name, family in FAMILIES.items() if family.kind in kinds]


ENCODERS, DECODERS, PAIRS = of_kind("encoder"), of_kind("decoder"), of_kind("pair")
