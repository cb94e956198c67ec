"""A small language model of headwise.models for each mechanism, the same but for its attention."""

from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch
from help_pages import VOCABULARY
from transformers import PreTrainedModel

import headwise as hw

Attention = Callable[[Namespace, bool], dict[str, Any]]


def _window(options: Namespace, causal: bool) -> dict[str, Any]:
    half = options.window // 2
    return {"pattern": hw.Window(options.window, 0) if causal else hw.Window(half, half)}


def _bigbird(options: Namespace, causal: bool) -> dict[str, Any]:
    patterns = [
        hw.patterns.bigbird(options.block, 3, 1, 2, seed=layer, length=options.length)
        for layer in range(options.layers)
    ]
    return {"pattern": patterns}


def _random_features(options: Namespace, causal: bool) -> dict[str, Any]:
    return {"mechanism": {"kind": "random_features", "count": options.features}}


def _low_rank(options: Namespace, causal: bool) -> dict[str, Any]:
    return {"mechanism": {"kind": "low_rank", "rank": options.rank}}


# What each says to the configuration. BigBird's blocks: 3 near ones, one at each end, 2 random.
MECHANISMS: dict[str, Attention] = {
    "full": lambda options, causal: {},
    "window": _window,
    "bigbird": _bigbird,
    "linear": lambda options, causal: {"mechanism": {"kind": "linear", "feature_map": "elu"}},
    "random-features": _random_features,
    "low-rank": _low_rank,
}
# Mixes all tokens before attention, so that no token could be kept from what comes after it.
NOT_CAUSAL = ("low-rank",)


def make(mechanism: str, task: str, options: Namespace) -> PreTrainedModel:
    """Return a new model, whose weights are drawn from ``options.seed``."""
    causal = task == "causal"
    config = hw.models.HeadwiseConfig(
        kind="decoder" if causal else "encoder",
        vocab_size=VOCABULARY,
        d_model=options.width,
        num_layers=options.layers,
        num_heads=options.heads,
        positions="rotary",
        max_positions=options.length,
        initializer_range=options.width**-0.5,
        **MECHANISMS[mechanism](options, causal),
    )
    torch.manual_seed(options.seed)
    kind = hw.models.HeadwiseForCausalLM if causal else hw.models.HeadwiseForMaskedLM
    return kind(config)
