"""Attention, positions and norms as a configuration file holds them: text, names and numbers."""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from inspect import Parameter, signature
from typing import Any

from torch import nn

from headwise._checks import is_int
from headwise.errors import PatternError
from headwise.nn import LinearAttention, LowRank, RandomFeatures
from headwise.patterns import (
    Causal,
    Full,
    GlobalBlocks,
    Pattern,
    RandomBlocks,
    Strided,
    Window,
    parse,
)
from headwise.positions import Alibi, Learned, RelativeBias, Rotary, Sinusoidal

_CALLER = "HeadwiseConfig"

MECHANISMS: dict[str, Callable[..., Any]] = {
    "linear": LinearAttention,
    "random_features": RandomFeatures,
    "low_rank": LowRank,
}
POSITIONS: dict[str, type[nn.Module]] = {
    "learned": Learned,
    "sinusoidal": Sinusoidal,
    "rotary": Rotary,
    "alibi": Alibi,
    "relative": RelativeBias,
}
# Positions that are added to the embedded tokens; the others belong to each layer.
_ADDED = ("learned", "sinusoidal")

# What a setting may leave out, because the model knows it or because there is a usual one.
_GIVEN_BY_MODEL = ("d_model", "head_dim", "num_heads", "num_kv_heads", "bidirectional")
_LEFT_OUT = {*_GIVEN_BY_MODEL, "max_length", "device", "dtype", "slopes"}
_USUAL: dict[str, dict[str, Any]] = {"linear": {"feature_map": "elu"}}


def pattern_text(name: str, given: object) -> str | None:
    """Return a pattern as text that ``headwise.patterns.parse`` reads back.

    Raises:
        PatternError: Text that is no pattern, or a pattern that text cannot hold.
        TypeError: Anything else.
    """
    if given is None or isinstance(given, str):
        if given is not None:
            parse(given)
        return given
    if not isinstance(given, Pattern):
        raise TypeError(
            f"{_CALLER}: {name} must be a pattern, its text, or None, got {given!r}\n"
            '  hint: headwise.Window(127, 0), "window(127, 0)", or a list with one for each layer'
        )
    text = repr(given)
    if not _reads_back(text, given):
        raise PatternError(
            f"{_CALLER}: {name} does not read back from its text, got {text[:80]}\n"
            "  hint: a configuration holds patterns of headwise; one of a class of your own goes "
            "into hw.MultiHeadAttention(pattern=…)"
        )
    return text


def mechanism_settings(name: str, given: object) -> dict[str, Any] | None:
    """Return a mechanism as its kind and numbers, what is usual filled in."""
    return _settings(name, given, MECHANISMS, "softmax attention")


def positions_settings(given: object) -> dict[str, Any] | None:
    """Return positions as their kind and numbers."""
    return _settings("positions", given, POSITIONS, "no positions")


def make_mechanism(given: Any, layer: int, max_positions: int) -> Any:
    """Build the mechanism of a layer; random features are other ones in every layer."""
    if given is None:
        return None
    numbers = _numbers(given)
    seed = numbers.get("seed", 0)
    if given["kind"] == "random_features" and is_int(seed):
        numbers["seed"] = seed + layer
    if given["kind"] == "low_rank":
        numbers.setdefault("max_length", max_positions)
    return MECHANISMS[given["kind"]](**numbers)


def make_added_positions(given: Any, max_positions: int, d_model: int) -> nn.Module | None:
    """Build the positions that are added to embedded tokens; ``None`` where layers have them."""
    if given is None or given["kind"] not in _ADDED:
        return None
    numbers = _numbers(given)
    if given["kind"] == "sinusoidal":
        return Sinusoidal(d_model, **numbers)
    return Learned(numbers.pop("max_length", max_positions), d_model, **numbers)


def make_layer_positions(given: Any, num_heads: int, head_dim: int, *, causal: bool) -> Any:
    """Build the positions of a layer; ``None`` where they are added to the embedding."""
    if given is None or given["kind"] in _ADDED:
        return None
    numbers = _numbers(given)
    if given["kind"] == "rotary":
        return Rotary(head_dim, **numbers)
    if given["kind"] == "relative":
        return RelativeBias(num_heads, bidirectional=not causal, **numbers)
    return Alibi(num_heads, **numbers)


def follows_length(pattern: Pattern) -> bool:
    """Say whether a pattern changes as a text grows, so that no cache can go with it."""
    if isinstance(pattern, RandomBlocks | GlobalBlocks):
        return pattern.length is None
    return any(follows_length(part) for part in _parts(pattern))


def knows_distances_only(pattern: Pattern) -> bool:
    """Say whether a pattern stays what it is when all tokens move by as many places."""
    parts = _parts(pattern)
    if parts:
        return all(knows_distances_only(part) for part in parts)
    return isinstance(pattern, Full | Causal | Window | Strided)


def _numbers(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name != "kind"}


def _parts(pattern: Pattern) -> list[Pattern]:
    """Return the patterns that a pattern joins."""
    if not is_dataclass(pattern):
        return []
    held = [getattr(pattern, part.name) for part in fields(pattern) if part.init]
    parts = [each for part in held for each in (part if isinstance(part, tuple) else (part,))]
    return [part for part in parts if isinstance(part, Pattern)]


def _settings(
    name: str, given: object, kinds: Mapping[str, Callable[..., Any]], without: str
) -> dict[str, Any] | None:
    if given is None:
        return None
    found = {"kind": given} if isinstance(given, str) else given
    kind = str(found.get("kind")) if isinstance(found, Mapping) else ""
    if not isinstance(found, Mapping) or kind not in kinds:
        raise ValueError(
            f"{_CALLER}: {name} must be None ({without}) or a dictionary whose kind is one of "
            f"{', '.join(kinds)}, got {given!r}\n"
            f'  hint: {{"kind": "{next(iter(kinds))}"}}, with numbers under their names beside it'
        )
    settings = {"kind": kind, **_USUAL.get(kind, {}), **found}
    wanted = signature(kinds[kind]).parameters
    taken = [each for each in wanted if each not in (*_GIVEN_BY_MODEL, "device", "dtype")]
    unknown = sorted(set(settings) - {"kind", *taken})
    if unknown:
        raise ValueError(
            f"{_CALLER}: {name} of the kind {kind!r} has no {', '.join(unknown)}\n"
            f"  hint: it takes {', '.join(taken)}"
        )
    absent = [
        each
        for each in taken
        if wanted[each].default is Parameter.empty and each not in {*_LEFT_OUT, *settings}
    ]
    if absent:
        raise ValueError(
            f"{_CALLER}: {name} of the kind {kind!r} needs {', '.join(absent)}, got {given!r}\n"
            f"  hint: it takes {', '.join(taken)}"
        )
    return settings


def _reads_back(text: str, pattern: Pattern) -> bool:
    try:
        return parse(text) == pattern
    except PatternError:
        return False
