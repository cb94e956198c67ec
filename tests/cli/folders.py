"""How a transformers folder is made whose tokens are bytes."""

from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers

CONTEXT = 97
_WIDTH = {
    "vocab_size": 258,
    "hidden_size": 30,
    "intermediate_size": 44,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 257,
}
LLAMA: dict[str, Any] = {**_WIDTH, "num_key_value_heads": 3, "head_dim": 4}
BERT: dict[str, Any] = dict(_WIDTH)
FALCON: dict[str, Any] = {**_WIDTH, "hidden_size": 24}

_PAIR = {
    "vocab_size": 258,
    "d_model": 30,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 257,
    "decoder_start_token_id": 256,
}
BART: dict[str, Any] = {
    **_PAIR,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 6,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 44,
    "decoder_ffn_dim": 44,
    "max_position_embeddings": CONTEXT,
}
LED: dict[str, Any] = {
    **BART,
    "attention_window": [4, 4],
    "max_encoder_position_embeddings": CONTEXT,
    "max_decoder_position_embeddings": 41,
}
T5: dict[str, Any] = {**_PAIR, "d_kv": 5, "d_ff": 44, "num_layers": 2, "num_heads": 6}


def lively(model: Any) -> Any:
    """Widen random weights, so that what is written is not the same token over and over."""
    for weight in model.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.6)
    return model


def save(model: Any, folder: Path) -> Path:
    """Write model and tokenizer, and return the folder."""
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def byte_tokenizer() -> Any:
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(letters)}
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    inner.add_special_tokens(["<start>", "<end>"])
    make: Any = transformers.PreTrainedTokenizerFast
    return make(tokenizer_object=inner, bos_token="<start>", eos_token="<end>", pad_token="<end>")
