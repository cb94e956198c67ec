"""What linear attention can do of what a layer asks, and what it refuses."""

from torch import Tensor

from headwise.errors import PatternError
from headwise.nn.mechanism import AttentionCall, LayerSettings
from headwise.ops.watchers import is_transformed, is_watched
from headwise.patterns import Causal, Full, Pattern
from headwise.patterns.wording import pattern_name

_NAME = "LinearAttention"


def refuse_settings(*, bias: bool, softcap: bool, sinks: bool, dropout: bool) -> None:
    """Refuse what needs the scores of pairs, which linear attention does not have.

    Args:
        bias: Whether numbers are to be added to the scores.
        softcap: Whether they are to be capped.
        sinks: Whether they meet sinks.
        dropout: Whether weights are to be dropped.

    Raises:
        NotImplementedError: One of them.
    """
    asked = (
        (
            "bias",
            bias,
            "leave the bias out; positions.Rotary, Sinusoidal and Learned need none, and decay= "
            "fades what is far",
        ),
        ("softcap", softcap, "leave softcap out"),
        ("sinks", sinks, "leave sinks out"),
        (
            "dropout",
            dropout,
            "make the layer with dropout=0.0; nn.Dropout behind the layer drops outputs",
        ),
    )
    for name, is_asked, hint in asked:
        if is_asked:
            raise NotImplementedError(
                f"{_NAME}: there are no scores of pairs, so {name} cannot be applied, and the "
                f"layer asks for it\n  hint: {hint}; softmax attention, mechanism=None, has it"
            )


def check_layer(settings: LayerSettings) -> None:
    """Refuse a layer whose every call would be refused."""
    refuse_settings(
        bias=settings.bias is not None,
        softcap=settings.softcap is not None,
        sinks=settings.sinks,
        dropout=settings.dropout > 0.0,
    )
    _is_causal(settings.pattern)


def asks_for_causality(call: AttentionCall, *, carried: bool) -> bool:
    """Say whether later keys are hidden.

    Args:
        call: What is asked.
        carried: Whether there is a state, whose tokens stand before the keys of the call.

    Raises:
        PatternError: A pattern other than none or ``Causal()``, or positions in which the last
            query does not stand beside the last key.
    """
    if not _is_causal(call.pattern):
        return False
    _check_places(call, carried)
    return True


def _is_causal(given: Pattern | None) -> bool:
    pattern = None if given is None else given.simplified()
    if pattern is None or type(pattern) is Full:
        return False
    if type(pattern) is not Causal:
        raise PatternError(
            f"{_NAME}: the pattern must be none or Causal(), got {pattern_name(pattern)}\n"
            "  hint: a state holds all tokens or none; give padding as kv_mask=, and windows, "
            "documents and masks to softmax attention, mechanism=None"
        )
    return True


def _check_places(call: AttentionCall, carried: bool) -> None:
    if call.q_offset is None:
        return
    ahead = call.q_offset - call.kv_offset
    beside = call.key.shape[-2] - call.query.shape[-2]
    if isinstance(ahead, Tensor):
        if is_watched(ahead) or is_transformed():
            raise PatternError(
                f"{_NAME}: q_offset must not be a tensor while a call is traced: its numbers "
                "cannot be checked there\n  hint: leave q_offset out"
            )
        fits = bool((ahead >= beside).all() if carried else (ahead == beside).all())
        got = str(ahead.tolist())
    else:
        fits, got = ahead >= beside if carried else ahead == beside, str(ahead)
    if not fits:
        raise PatternError(
            f"{_NAME}: the last query must stand beside the last key, so that the first query is "
            f"{beside} behind the first key, got {got}\n"
            "  hint: leave q_offset out"
        )
