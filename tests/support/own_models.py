"""Tiny models of ``headwise.models`` with weights that matter, and what they read."""

from typing import Any

import torch
from torch import Tensor

from headwise import models

VOCAB = 31
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "d_model": 12,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 20,
    "max_positions": 64,
    "initializer_range": 0.5,
}
HEADS: dict[str, Any] = {
    "encoder": models.HeadwiseForMaskedLM,
    "decoder": models.HeadwiseForCausalLM,
    "encoder_decoder": models.HeadwiseForSeq2SeqLM,
}
RANDOM_FEATURES = {"kind": "random_features", "count": 16}
LOW_RANK = {"kind": "low_rank", "rank": 8}

# What tells decoders apart that keep keys and values in different ways.
DECODERS: dict[str, dict[str, Any]] = {
    "rotary": {"num_kv_heads": 1},
    "learned": {"positions": "learned", "norm": "rms"},
    "sinusoidal": {"positions": "sinusoidal", "norm_first": False, "embedding_norm": True},
    "alibi": {"positions": "alibi", "sinks": True},
    "relative": {"positions": "relative", "softcap": 5.0},
    "longformer": {"pattern": "window(3, 0) | global(0)"},
    "bigbird": {"pattern": "bigbird(4, length=64)", "positions": "learned"},
    "strided": {"pattern": "strided(3)", "qk_norm": True},
    "linear": {"mechanism": "linear"},
    "performer": {"mechanism": RANDOM_FEATURES, "positions": "learned"},
    "mixed": {"mechanism": [None, "linear"], "pattern": ["window(3, 0)", None]},
}
ENCODERS: dict[str, dict[str, Any]] = {
    "full": {},
    "longformer": {"pattern": "longformer(6, [0])"},
    "bigbird": {"pattern": ["bigbird(4, seed=0)", "bigbird(4, seed=1)"]},
    "linear": {"mechanism": "linear"},
    "performer": {"mechanism": RANDOM_FEATURES},
    "linformer": {"mechanism": LOW_RANK},
}
PAIRS: dict[str, dict[str, Any]] = {
    "softmax": {"positions": "sinusoidal"},
    "windows": {"pattern": "window(3, 0)", "encoder_pattern": "window(2, 2)"},
    "linear": {"mechanism": "linear", "encoder_mechanism": "linear", "cross_mechanism": "linear"},
    "performer": {"mechanism": RANDOM_FEATURES, "encoder_mechanism": RANDOM_FEATURES},
    "linformer": {"encoder_mechanism": LOW_RANK, "cross_mechanism": LOW_RANK},
}


def config(kind: str = "decoder", **changes: Any) -> models.HeadwiseConfig:
    """Return a tiny configuration."""
    start = {"decoder_start_token_id": 1} if kind == "encoder_decoder" else {}
    return models.HeadwiseConfig(
        **{"kind": kind, "pad_token_id": 0, "eos_token_id": 2, **start, **SIZES, **changes}
    )


def tiny(kind: str = "decoder", seed: int = 7, **changes: Any) -> Any:
    """Return a tiny model of a kind with its language-model head, in evaluation."""
    return seeded(HEADS[kind], config(kind, **changes), seed)


def seeded(made: Any, settings: models.HeadwiseConfig, seed: int = 7) -> Any:
    """Build a model from a seed, in evaluation."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return made(settings).eval()


def tokens(batch: int = 2, length: int = 11, seed: int = 3) -> Tensor:
    """Return token numbers that are no special ones."""
    return torch.randint(3, VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed))


def given(kind: str, batch: int = 2, length: int = 11) -> dict[str, Tensor]:
    """Return what a forward pass of a kind takes."""
    found = {"input_ids": tokens(batch, length)}
    if kind == "encoder_decoder":
        found["decoder_input_ids"] = tokens(batch, 5, seed=4)
    return found
