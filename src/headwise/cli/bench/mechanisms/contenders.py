"""The mechanisms that are compared; exact attention stands first."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

import headwise as hw
from headwise.cli.bench.contenders import formula
from headwise.cli.bench.mechanisms.made import Made
from headwise.cli.bench.mechanisms.states import Shape
from headwise.nn import AttentionCall, Step
from headwise.patterns import Causal, Pattern, Window

EXACT = "exact"
_KEYS = 256
_RANK = 256


class Softmax(nn.Module):
    """Softmax attention under the pattern of the call."""

    @override
    def forward(self, call: AttentionCall, state: object = None) -> Step:
        """Return the output of ``headwise.attend``."""
        return Step(hw.attend(call.query, call.key, call.value, call.pattern), None)

    def reference(self, call: AttentionCall) -> Tensor:
        """Return the output by the formula written out."""
        mask = None
        if call.pattern is not None:
            mask = call.pattern.dense(call.query.shape[2], call.key.shape[2])
        return formula(call.query, call.key, call.value, mask)


@dataclass(frozen=True)
class Contender:
    """One mechanism of the comparison.

    Attributes:
        name: Short and unique; what ``--case`` takes.
        make: Makes it for a shape and a number of tokens: an object with the methods ``forward``
            and ``reference`` of ``headwise.nn.Mechanism``.
        full: The pattern where all may see all.
        causal: The pattern where later tokens are hidden; ``None`` = there is no causal form.
        note: What has to be known to read its figures.
    """

    name: str
    make: Callable[[Shape, int], Any]
    full: Pattern | None
    causal: Pattern | None
    note: str

    def takes(self, causal: bool) -> bool:
        """Say whether there is such a form."""
        return not causal or self.causal is not None

    def ready(self, shape: Shape, length: int, causal: bool) -> Made:
        """Make it for so many tokens."""
        return Made(self.make(shape, length), self.causal if causal else self.full)


def _softmax(shape: Shape, length: int) -> Softmax:
    return Softmax()


def _elu(shape: Shape, length: int) -> hw.nn.LinearAttention:
    return hw.nn.LinearAttention("elu")


def _random_features(count: int) -> Callable[[Shape, int], Any]:
    return lambda shape, length: hw.nn.RandomFeatures(count, shape.head_dim)


def _random_projection(shape: Shape, length: int) -> hw.nn.LowRank:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return hw.nn.LowRank(_RANK, length, num_kv_heads=shape.heads)


def _mean_pool(shape: Shape, length: int) -> hw.nn.LowRank:
    windows_fit = -(-length // _RANK) * _RANK
    return hw.nn.LowRank(_RANK, windows_fit, projection="mean")


CONTENDERS: tuple[Contender, ...] = (
    Contender(EXACT, _softmax, None, Causal(), "softmax attention by headwise.attend"),
    Contender(
        f"window-{_KEYS}",
        _softmax,
        Window(_KEYS // 2, _KEYS // 2),
        Causal() & Window(_KEYS - 1, 0),
        f"softmax attention to {_KEYS} neighbours",
    ),
    Contender(
        "linear-elu",
        _elu,
        None,
        Causal(),
        "linear attention with elu + 1: an attention of its own, not an estimate of softmax",
    ),
    *(
        Contender(
            f"random-features-{count}",
            _random_features(count),
            None,
            Causal(),
            f"an estimate of softmax attention by {count} positive random features (Performer)",
        )
        for count in (64, 256)
    ),
    Contender(
        f"low-rank-{_RANK}",
        _random_projection,
        None,
        None,
        f"{_RANK} projected tokens (Linformer); the projections are random ones, not trained, so "
        "the error says nothing of a trained layer",
    ),
    Contender(
        f"mean-pool-{_RANK}",
        _mean_pool,
        None,
        None,
        f"the means of at most {_RANK} windows of tokens; nothing is learned",
    ),
)
