"""Reads what follows ``--attention``: a pattern, or a kind of attention with its number."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from headwise.cli.failures import WrongInput, check_text, one_line
from headwise.errors import PatternError
from headwise.nn import LinearAttention, LowRank, RandomFeatures
from headwise.patterns import Causal, Pattern, Window, bigbird, longformer, parse

_WORDS = re.compile(r"[A-Za-z][\w+-]*(?:\s+[\w+-]+)*")
# More features or ranks than that would fill the memory before they are refused.
_MOST = 8192
_MAPS = ("elu", "relu", "squared_relu", "softmax")


@dataclass(frozen=True)
class Place:
    """Where attention is to stand.

    Attributes:
        causal: Whether later tokens are hidden from earlier ones.
        tokens: The most tokens that will be read at once.
        layer: Number of the layer.
    """

    causal: bool
    tokens: int
    layer: int = 0


@dataclass(frozen=True)
class AttentionWords:
    """The attention that was asked for.

    Attributes:
        text: As it was typed.
        build: Makes it for a place: a ``headwise.Pattern`` or a mechanism of ``headwise.nn``.
        note: What has to be known of it; may be empty.
    """

    text: str
    build: Callable[[Place], Any]
    note: str = ""


@dataclass(frozen=True)
class _Kind:
    """A kind of attention that has a name and takes one number."""

    takes: str
    usual: int | None
    build: Callable[[int, Place], Any]
    note: str = ""
    most: int | None = None


def _window(count: int, place: Place) -> Pattern:
    return Causal() & Window(count - 1, 0) if place.causal else Window(count // 2, count // 2)


def _low_rank(rank: int, place: Place) -> LowRank:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(place.layer)
        return LowRank(rank, max(place.tokens, rank), "heads")


def _mean_pool(rank: int, place: Place) -> LowRank:
    return LowRank(rank, -(-max(place.tokens, rank) // rank) * rank, projection="mean")


_KINDS = {
    "window": _Kind("TOKENS", None, _window),
    "longformer": _Kind("TOKENS", None, lambda count, _: longformer(count, [0])),
    "bigbird": _Kind("BLOCK", 64, lambda block, _: bigbird(block)),
    "random-features": _Kind(
        "COUNT", None, lambda count, place: RandomFeatures(count, seed=place.layer), most=_MOST
    ),
    "low-rank": _Kind(
        "RANK",
        None,
        _low_rank,
        note="its projections are random numbers: they have to be trained",
        most=_MOST,
    ),
    "mean-pool": _Kind("RANK", None, _mean_pool, most=_MOST),
}
_ALIASES = {"performer": "random-features", "linformer": "low-rank"}

_NAMED = (
    "window TOKENS, longformer TOKENS, bigbird [BLOCK], random-features COUNT, low-rank RANK, "
    f"mean-pool RANK, linear MAP ({', '.join(_MAPS)})"
)
KNOWN = f"{_NAMED}, or a pattern as headwise explain takes it, such as 'window(64, 64) | global(0)'"


def read_attention(text: str) -> AttentionWords:
    """Read what follows ``--attention``.

    ``window 128`` is that many tokens around each one, half of them on either side; where later
    tokens are hidden, the last 128 up to itself. ``longformer 256`` is Longformer's window with
    the first token global. Names stand for themselves with ``-`` or ``_``, in any case.

    Raises:
        WrongInput: It is neither a kind of attention nor a pattern.
    """
    check_text(text)
    if not _WORDS.fullmatch(text.strip()):
        return _pattern(text, text)
    first, *numbers = text.split()
    name = first.lower().replace("_", "-")
    name = _ALIASES.get(name, name)
    if name == "linear":
        return _linear(text, numbers)
    if name in _KINDS:
        return _of_kind(text, name, numbers)
    return _pattern(text, f"{first}({', '.join(numbers)})" if numbers else first)


def _linear(text: str, maps: list[str]) -> AttentionWords:
    if len(maps) != 1 or maps[0] not in _MAPS:
        raise WrongInput(
            f"--attention linear takes one feature map, {', '.join(_MAPS)}, got {text!r}; "
            "as in --attention 'linear elu'"
        )
    return AttentionWords(text, lambda _: LinearAttention(maps[0]))


def _of_kind(text: str, name: str, numbers: list[str]) -> AttentionWords:
    kind = _KINDS[name]
    number = kind.usual if not numbers and kind.usual is not None else 0
    if len(numbers) == 1 and re.fullmatch("[0-9]{1,18}", numbers[0]):
        number = int(numbers[0])
    if number < 1 or (kind.most is not None and number > kind.most):
        limits = "at least 1" if kind.most is None else f"at least 1 and at most {kind.most}"
        raise WrongInput(
            f"--attention {name} takes {kind.takes}, a whole number of {limits}, got {text!r}; "
            f"as in --attention '{name} {kind.usual or 128}'"
        )
    return AttentionWords(text, lambda place: kind.build(number, place), kind.note)


def _pattern(text: str, spelled: str) -> AttentionWords:
    try:
        found = parse(spelled)
    except PatternError as wrong:
        if _WORDS.fullmatch(text.strip()) or not text.strip():
            raise WrongInput(f"--attention takes {KNOWN}; got {text!r}") from wrong
        said = one_line(wrong, "patterns.parse")
        raise WrongInput(f"--attention: {said}; or name a kind: {_NAMED}") from wrong
    return AttentionWords(text, lambda _: found)
