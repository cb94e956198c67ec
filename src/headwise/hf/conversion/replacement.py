"""Takes what a model is to attend by, checks it against every module, and makes the parts."""

import copy
from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import nn

from headwise._checks import is_int
from headwise.errors import BackendRefused, PatternError, ShapeError
from headwise.hf.conversion.converted import Converted, Replacement, described
from headwise.hf.conversion.self_attention import SelfAttention
from headwise.nn.mechanism import Mechanism
from headwise.patterns import Full, Pattern

Choice = Replacement | Callable[[int], Replacement | None] | None

# Tokens for which a pattern is spelled out, to see whether it leaves anything.
_LOOKED_AT = 1024


class Planned(NamedTuple):
    """A module and what it is to attend by; ``None`` = softmax, as it did when it was loaded."""

    of: SelfAttention
    part: Converted | None


def plan(found: Sequence[SelfAttention], choice: Choice) -> list[Planned]:
    """Make what is to stand in each module, or refuse the choice for all of them.

    Raises:
        TypeError: A choice that is none.
        PatternError: A pattern that leaves nothing, or for other heads.
        BackendRefused: A mechanism that cannot do what a module asks.
    """
    pairs = [(each, _chosen(choice, each)) for each in found]
    for each, replacement in pairs:
        if isinstance(replacement, Pattern):
            _check_pattern(each, replacement)
    reasons = {
        each: reason
        for each, replacement in pairs
        if (reason := _refusal(each, replacement, dropout=0.0)) is not None
    }
    if reasons:
        raise _refused(pairs, reasons)
    return [Planned(each, _made(each, replacement)) for each, replacement in pairs]


def chosen_layers(
    found: Sequence[SelfAttention], layers: Sequence[int] | None
) -> list[SelfAttention]:
    """Return the modules that ``layers`` names.

    Raises:
        TypeError: Something else than a sequence of ints.
        ShapeError: A number that no module has, or none at all.
    """
    if layers is None:
        return list(found)
    if isinstance(layers, str | bytes) or not isinstance(layers, Sequence | range):
        raise TypeError(
            f"convert: layers must be a sequence of ints, got {layers!r}\n"
            "  hint: layers=[0, 1], or leave it out for all"
        )
    wrong = [each for each in layers if not is_int(each) or not 0 <= each < len(found)]
    if wrong or not layers:
        raise ShapeError(
            f"convert: layers must be numbers from 0 to {len(found) - 1}, got {list(layers)}\n"
            f"  hint: self-attention is counted in the order of the model, {found[0].name} first, "
            "the decoder after the encoder; cross attention is not counted"
        )
    wanted = set(layers)
    return [each for each in found if each.number in wanted]


def _chosen(choice: Choice, of: SelfAttention) -> Replacement | None:
    """Return what a module is to attend by; of an object that has tensors, a copy of its own."""
    if choice is None or isinstance(choice, Pattern):
        return choice
    if isinstance(choice, Mechanism) and not isinstance(choice, type):
        return copy.deepcopy(choice)
    if isinstance(choice, str | type | nn.Module) or not callable(choice):
        raise _refuse_kind("mechanism", choice)
    found = choice(of.number)
    if found is None or (isinstance(found, Pattern | Mechanism) and not isinstance(found, type)):
        return found
    raise _refuse_kind(f"mechanism({of.number})", found)


def _refuse_kind(name: str, got: object) -> TypeError:
    if isinstance(got, str):
        hint = "headwise.patterns.parse(text) reads a pattern from text"
    elif isinstance(got, type):
        hint = f"give an object, {got.__name__}(…)"
    else:
        hint = (
            "a pattern such as headwise.Window(64, 64), a mechanism such as "
            "headwise.nn.LinearAttention('elu'), or a function from the number of a layer to one"
        )
    return TypeError(
        f"convert: {name} must be a pattern, an object that follows headwise.nn.Mechanism, or "
        f"None for softmax attention, got {described(got)}\n  hint: {hint}"
    )


def _check_pattern(of: SelfAttention, pattern: Pattern) -> None:
    heads = pattern.num_heads
    if heads not in (None, 1) and heads != of.sizes()["q_heads"]:
        raise PatternError(
            f"convert: the pattern tells {heads} heads apart, and {of.called} has "
            f"{of.sizes()['q_heads']}\n  pattern  {described(pattern)}\n"
            "  hint: give PerHead one pattern for each head"
        )
    try:
        seen = (pattern & of.own).dense(_LOOKED_AT, _LOOKED_AT)
    except PatternError:  # It holds a tensor for calls of other sizes, and is checked in those.
        return
    if not seen.any():
        own = "" if isinstance(of.own, Full) else f", which has {described(of.own)} of its own,"
        raise PatternError(
            f"convert: the pattern leaves no key to any query of {of.called}{own} up to "
            f"{_LOOKED_AT} tokens\n  pattern  {described(pattern)}\n"
            "  hint: patterns are and-ed with what the model allows; draw them with "
            "(pattern & headwise.Causal()).draw(8, 8)"
        )


def _refusal(of: SelfAttention, replacement: Replacement | None, dropout: float) -> str | None:
    """Return why a mechanism cannot do what a module asks."""
    check = getattr(replacement, "check_layer", None)
    if not callable(check):
        return None
    try:
        check(of.settings(dropout=dropout))
    except (NotImplementedError, PatternError) as refused:
        return str(refused).partition("\n")[0].partition(": ")[2]
    return None


def _refused(
    pairs: Sequence[tuple[SelfAttention, Replacement | None]], reasons: dict[SelfAttention, str]
) -> BackendRefused:
    first = next(iter(reasons))
    name = described(dict(pairs)[first])
    others = len(reasons) - 1
    more = f"; {others} more of {len(pairs)} are refused" if others else ""
    able = [each.number for each in dict(pairs) if each not in reasons]
    hint = f"layers={able} can take it; " if able else ""
    return BackendRefused(
        f"convert: {first.called} cannot attend by {name}: {reasons[first]}{more}\n"
        f"  hint: {hint}patterns such as headwise.Window(64, 64) keep what the model asks; "
        "nothing was changed"
    )


def _made(of: SelfAttention, replacement: Replacement | None) -> Converted | None:
    if replacement is None:
        return None
    drops = _refusal(of, replacement, dropout=0.5) is None
    fit = getattr(replacement, "fit", None)
    if not isinstance(replacement, Pattern) and callable(fit):
        fit(**of.sizes())
    part = Converted(replacement, slides=of.slides, drops=drops).train(of.module.training)
    weight = next((w for w in of.module.parameters() if w.is_floating_point()), None)
    return part if weight is None else part.to(weight.device, weight.dtype)
