"""Reads a ``scaling=`` mapping as transformers writes it, and refuses what makes no sense."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from headwise._checks import is_int
from headwise.positions.bases import is_number


class _Key(NamedTuple):
    """What may stand under a key."""

    rule: str
    holds: Callable[[Any], bool]


def _numbers(given: object) -> bool:
    return (
        isinstance(given, Sequence)
        and not isinstance(given, str)
        and all(is_number(one) and one > 0 for one in given)
    )


_POSITIVE = _Key("a finite number above 0", lambda given: is_number(given) and given > 0)
_NOT_NEGATIVE = _Key("a finite number of at least 0", lambda given: is_number(given) and given >= 0)
_STRETCH = _Key("a finite number of at least 1", lambda given: is_number(given) and given >= 1)
_TOKENS = _Key("an int of at least 2", lambda given: is_int(given) and given >= 2)
_SHARE = _Key("a number above 0, at most 1", lambda given: is_number(given) and 0 < given <= 1)
_LIST = _Key("a list of finite numbers above 0", _numbers)

_KEYS = {
    "factor": _STRETCH,
    "original_max_position_embeddings": _TOKENS,
    "attention_factor": _POSITIVE,
    "beta_fast": _POSITIVE,
    "beta_slow": _POSITIVE,
    "mscale": _NOT_NEGATIVE,
    "mscale_all_dim": _NOT_NEGATIVE,
    "truncate": _Key("True or False", lambda given: isinstance(given, bool)),
    "short_factor": _LIST,
    "long_factor": _LIST,
    "low_freq_factor": _POSITIVE,
    "high_freq_factor": _POSITIVE,
    "rope_theta": _POSITIVE,
    "partial_rotary_factor": _SHARE,
}
_ORIGINAL = "original_max_position_embeddings"
_NEEDED: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor", _ORIGINAL),
    "yarn": ("factor", _ORIGINAL),
    "longrope": ("short_factor", "long_factor", _ORIGINAL),
    "llama3": ("factor", _ORIGINAL, "low_freq_factor", "high_freq_factor"),
    "proportional": (),
}
_MORE: dict[str, tuple[str, ...]] = {
    "yarn": ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    "longrope": ("factor", "attention_factor"),
    "proportional": ("factor",),
}
# Kinds that transformers calls otherwise by now.
_FORMER = {
    "su": "Phi-3's first configurations say so; write 'longrope', and give "
    "'original_max_position_embeddings' and 'factor', which stand beside the scaling there",
}
_HINTS = {
    "factor": "it is how many times longer the texts are than those of the training",
    _ORIGINAL: "it is the longest text of the training, in tokens; for 'dynamic' that is "
    "max_position_embeddings of a transformers configuration",
}


def read(
    scaling: Mapping[str, Any] | None, head_dim: int, width: int, base: float
) -> tuple[tuple[str, Any], ...]:
    """Return the settings of a scaling as a value, sorted, with ``rope_type`` first."""
    if scaling is None:
        return (("rope_type", "default"),)
    if not isinstance(scaling, Mapping):
        raise _wrong(
            f"scaling must be a mapping or None, got {type(scaling).__name__}",
            "write it as transformers does: {'rope_type': 'linear', 'factor': 2.0}",
        )
    given = {key: value for key, value in scaling.items() if value is not None}
    kind = _kind(given)
    _check_keys(kind, given)
    for key, value in given.items():
        if not _KEYS[key].holds(value):
            raise _wrong(f"scaling[{key!r}] must be {_KEYS[key].rule}, got {value!r}", _hint(key))
    _check_together(kind, given, width)
    _check_layer(kind, given, head_dim, width, base)
    frozen = {key: tuple(value) if _KEYS[key] is _LIST else value for key, value in given.items()}
    return (("rope_type", kind), *sorted(frozen.items()))


def _kind(given: dict[str, Any]) -> str:
    """Take the kind out of the mapping; ``type`` is how transformers spelled it before."""
    named = [given.pop(key) for key in ("rope_type", "type") if key in given]
    kinds = "there are " + ", ".join(repr(kind) for kind in _NEEDED)
    if not named and any(isinstance(entry, Mapping) for entry in given.values()):
        first = next(key for key, entry in given.items() if isinstance(entry, Mapping))
        raise _wrong(
            f"scaling must be that of one kind of layers, got those of {_listed(given)}",
            f"pass the entry of this layer, such as scaling[{first!r}], and its 'rope_theta' as "
            "base",
        )
    if not named or any(kind != named[0] for kind in named):
        found = " and ".join(sorted(repr(kind) for kind in named)) or "none"
        raise _wrong(f"scaling must name one 'rope_type', got {found}", kinds)
    kind = named[0]
    if not isinstance(kind, str) or kind not in _NEEDED:
        raise _wrong(
            f"scaling['rope_type'] must be a known kind, got {kind!r}",
            _FORMER.get(str(kind), kinds),
        )
    if kind == "yarn" and given.keys() & {"short_factor", "long_factor"}:
        raise _wrong(
            f"scaling of kind 'yarn' knows no lists of factors, got {_listed(given)}",
            _FORMER["su"],
        )
    return kind


def _check_keys(kind: str, given: dict[str, Any]) -> None:
    needed = _NEEDED[kind]
    known = (*needed, *_MORE.get(kind, ()), "rope_theta", "partial_rotary_factor")
    for key in needed:
        if key not in given:
            raise _wrong(
                f"scaling of kind {kind!r} needs {key!r}, got {_listed(given)}", _hint(key)
            )
    unknown = [key for key in given if key not in known]
    if unknown:
        raise _wrong(
            f"scaling of kind {kind!r} knows no key {unknown[0]!r}", f"it takes {_listed(known)}"
        )
    if kind == "longrope" and not given.keys() & {"factor", "attention_factor"}:
        raise _wrong(
            "scaling of kind 'longrope' needs 'factor' or 'attention_factor', got "
            f"{_listed(given)}",
            "factor is max_position_embeddings / original_max_position_embeddings of a "
            "transformers configuration",
        )


def _check_together(kind: str, given: dict[str, Any], width: int) -> None:
    if kind == "llama3" and not given["low_freq_factor"] < given["high_freq_factor"]:
        raise _wrong(
            "scaling['low_freq_factor'] must be below scaling['high_freq_factor'], got "
            f"{given['low_freq_factor']} and {given['high_freq_factor']}",
            "Llama 3.1 has 1.0 and 4.0",
        )
    fast, slow = given.get("beta_fast", 32), given.get("beta_slow", 1)
    if kind == "yarn" and fast < slow:
        raise _wrong(
            f"scaling['beta_fast'] must be at least scaling['beta_slow'], got {fast} and {slow}",
            "where they are left out they are 32 and 1",
        )
    for key in ("short_factor", "long_factor") if kind == "longrope" else ():
        if len(given[key]) != width // 2:
            raise _wrong(
                f"scaling[{key!r}] must hold a number for each of {width // 2} pairs of columns, "
                f"got {len(given[key])}",
                "there are rotary_dim / 2 pairs",
            )
    if kind == "dynamic" and width < 4:
        raise _wrong(
            f"scaling of kind 'dynamic' needs a rotary_dim of at least 4, got {width}",
            "it raises the base to the power of rotary_dim / (rotary_dim - 2)",
        )


def _check_layer(kind: str, given: dict[str, Any], head_dim: int, width: int, base: float) -> None:
    """Refuse a whole ``rope_parameters`` that speaks of another layer."""
    theta = given.pop("rope_theta", base)
    if theta != base:
        raise _wrong(
            f"scaling['rope_theta'] must agree with base, got {theta} and {base}",
            f"pass base={theta}, or leave 'rope_theta' out",
        )
    if kind == "proportional":
        if width != head_dim:
            raise _wrong(
                f"scaling of kind 'proportional' turns whole heads, got rotary_dim={width} of "
                f"{head_dim}",
                "leave rotary_dim out; 'partial_rotary_factor' says how many pairs turn",
            )
        return
    share = given.pop("partial_rotary_factor", None)
    if share is not None and int(head_dim * share) != width:
        raise _wrong(
            f"scaling['partial_rotary_factor'] must agree with rotary_dim, got {share} of "
            f"{head_dim} columns and {width}",
            f"pass rotary_dim={int(head_dim * share)}, or leave 'partial_rotary_factor' out",
        )


def _hint(key: str) -> str:
    return _HINTS.get(key, "see the model's configuration for it")


def _listed(keys: Iterable[str]) -> str:
    return ", ".join(repr(key) for key in keys) or "none"


def _wrong(problem: str, hint: str) -> ValueError:
    return ValueError(f"Rotary: {problem}\n  hint: {hint}")
