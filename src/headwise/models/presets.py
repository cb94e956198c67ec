"""Configurations of models that have a name; arguments of ``HeadwiseConfig`` change them."""

from typing import Any

from headwise.models.configuration import HeadwiseConfig
from headwise.patterns import bigbird as bigbird_pattern
from headwise.patterns import longformer as longformer_pattern

_BERT: dict[str, Any] = {
    "kind": "encoder",
    "vocab_size": 30522,
    "d_model": 768,
    "num_layers": 12,
    "num_heads": 12,
    "activation": "gelu",
    "eps": 1e-12,
    "norm_first": False,
    "embedding_norm": True,
    "num_segments": 2,
    "positions": "learned",
    "max_positions": 512,
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "lm_bias": True,
    "lm_transform": True,
    "pooler": True,
    "pad_token_id": 0,
}
_GPT: dict[str, Any] = {
    "kind": "decoder",
    "vocab_size": 50257,
    "d_model": 768,
    "num_layers": 12,
    "num_heads": 12,
    "activation": "gelu_tanh",
    "positions": "learned",
    "max_positions": 1024,
    "dropout": 0.1,
    "attention_dropout": 0.1,
}
_LLAMA: dict[str, Any] = {
    "kind": "decoder",
    "vocab_size": 49152,
    "d_model": 576,
    "num_layers": 30,
    "num_heads": 9,
    "num_kv_heads": 3,
    "hidden_dim": 1536,
    "activation": "silu",
    "gated": True,
    "bias": False,
    "norm": "rms",
    "positions": "rotary",
}
_PAIR: dict[str, Any] = {
    "kind": "encoder_decoder",
    "vocab_size": 32000,
    "d_model": 512,
    "num_layers": 6,
    "num_heads": 8,
    "activation": "relu",
    "norm_first": False,
    "scale_embeddings": True,
    "positions": "sinusoidal",
    "dropout": 0.1,
}


def bert(**changes: Any) -> HeadwiseConfig:
    """Return the encoder of BERT-base (Devlin et al., 2019): norms behind, learned positions."""
    return HeadwiseConfig(**{**_BERT, **changes})


def gpt(**changes: Any) -> HeadwiseConfig:
    """Return the decoder of GPT-2 (Radford et al., 2019): norms in front, learned positions."""
    return HeadwiseConfig(**{**_GPT, **changes})


def llama(**changes: Any) -> HeadwiseConfig:
    """Return a decoder in the form of Llama (Touvron et al., 2023), in the size of SmolLM2-135M.

    RMS norms in front, rotary positions, a gated feed-forward part, no biases, grouped heads.
    """
    grouped = {} if "num_heads" not in changes else {"num_kv_heads": None}
    return HeadwiseConfig(**{**_LLAMA, **grouped, **changes})


def encoder_decoder(**changes: Any) -> HeadwiseConfig:
    """Return the base model of "Attention Is All You Need" (Vaswani et al., 2017)."""
    return HeadwiseConfig(**{**_PAIR, **changes})


def longformer(
    window: int = 512, global_tokens: tuple[int, ...] = (0,), **changes: Any
) -> HeadwiseConfig:
    """Return a BERT of 4,096 tokens with Longformer's attention (Beltagy et al., 2020).

    Args:
        window: Neighbours on both sides together, as ``headwise.patterns.longformer`` counts.
        global_tokens: Places that see all and are seen by all.
        changes: Arguments of ``HeadwiseConfig``; ``kind="decoder"`` makes it causal.
    """
    pattern = longformer_pattern(window, global_tokens)
    return HeadwiseConfig(**{**_BERT, "max_positions": 4096, "pattern": pattern, **changes})


def bigbird(
    block: int = 64,
    window_blocks: int = 3,
    global_blocks: int = 1,
    random_blocks: int = 3,
    seed: int = 0,
    **changes: Any,
) -> HeadwiseConfig:
    """Return a BERT of 4,096 tokens with BigBird's attention (Zaheer et al., 2020).

    Args:
        block: Tokens in a block, see ``headwise.patterns.bigbird``.
        window_blocks: Blocks of the window.
        global_blocks: Blocks at each end that see all and are seen by all.
        random_blocks: Further blocks for each block of queries.
        seed: Where those of the first layer are drawn from; every layer has others.
        changes: Arguments of ``HeadwiseConfig``.
    """
    found = {**_BERT, "max_positions": 4096, **changes}
    counts = (block, window_blocks, global_blocks, random_blocks)
    length = None if found["kind"] == "encoder" else found["max_positions"]
    patterns = [
        bigbird_pattern(*counts, seed=seed + layer, length=length)
        for layer in range(found["num_layers"])
    ]
    return HeadwiseConfig(**{"pattern": patterns, **found})


def linformer(
    rank: int = 256, share: str = "none", projection: str = "linear", **changes: Any
) -> HeadwiseConfig:
    """Return a BERT with the low-rank attention of Linformer (Wang et al., 2020).

    Args:
        rank: Projected tokens, see ``headwise.nn.LowRank``.
        share: Who shares a projection.
        projection: How tokens are projected.
        changes: Arguments of ``HeadwiseConfig``; ``max_positions`` is the longest text.
    """
    mechanism = {"kind": "low_rank", "rank": rank, "share": share, "projection": projection}
    return HeadwiseConfig(**{**_BERT, "mechanism": mechanism, **changes})


def performer(count: int = 256, seed: int = 0, **changes: Any) -> HeadwiseConfig:
    """Return a BERT with the random features of Performer (Choromanski et al., 2021).

    Args:
        count: Features of a token, see ``headwise.nn.RandomFeatures``.
        seed: Where those of the first layer are drawn from; every layer has others.
        changes: Arguments of ``HeadwiseConfig``; ``kind="decoder"`` makes it causal.
    """
    mechanism = {"kind": "random_features", "count": count, "seed": seed}
    settings = {"mechanism": mechanism, "attention_dropout": 0.0, "max_positions": 4096}
    return HeadwiseConfig(**{**_BERT, **settings, **changes})
