"""What linear attention can do of what a layer asks, and what it refuses."""

from torch import Tensor

from headwise._checks import refuse_shapes
from headwise.errors import PatternError
from headwise.nn.mechanism import AttentionCall
from headwise.ops.watchers import is_transformed, is_watched
from headwise.patterns import Causal, Full
from headwise.patterns.wording import pattern_name

_NAME = "LinearAttention"


def refuse_the_rest(call: AttentionCall) -> None:
    """Refuse what needs the scores of pairs, which linear attention does not have.

    Raises:
        NotImplementedError: A bias, softcap, sinks or dropout.
    """
    asked = (
        (
            "bias",
            call.bias is not None,
            "leave the bias out; positions.Rotary, Sinusoidal and Learned need none, and decay= "
            "fades what is far",
        ),
        ("softcap", call.softcap is not None, "leave softcap out"),
        ("sinks", call.sinks is not None, "leave sinks out"),
        (
            "dropout",
            call.dropout_p > 0.0,
            "make the layer with dropout=0.0; nn.Dropout behind the layer drops outputs",
        ),
    )
    for name, is_asked, hint in asked:
        if is_asked:
            raise NotImplementedError(
                f"{_NAME}: there are no scores of pairs, so {name} cannot be applied, and the "
                f"layer asks for it\n  hint: {hint}; softmax attention, mechanism=None, has it"
            )


def asks_for_causality(call: AttentionCall, *, carried: bool) -> bool:
    """Say whether later keys are hidden.

    Args:
        call: What is asked.
        carried: Whether there is a state, whose tokens stand before the keys of the call.

    Raises:
        PatternError: A pattern other than none or ``Causal()``, or positions in which the last
            query does not stand beside the last key.
    """
    pattern = None if call.pattern is None else call.pattern.simplified()
    if pattern is None or type(pattern) is Full:
        return False
    if type(pattern) is not Causal:
        raise PatternError(
            f"{_NAME}: the pattern must be none or Causal(), got {pattern_name(pattern)}\n"
            "  hint: a state holds all tokens or none; give padding as kv_mask=, and windows, "
            "documents and masks to softmax attention, mechanism=None"
        )
    _check_places(call, carried)
    return True


def key_padding(call: AttentionCall, *, carried: bool) -> Tensor | None:
    """Return which new keys are real; those in the state have been left out before."""
    mask, kv_len = call.kv_mask, call.key.shape[-2]
    if mask is None or mask.shape[-1] == kv_len:
        return mask
    if not carried or mask.shape[-1] < kv_len:
        raise refuse_shapes(
            _NAME,
            "kv_mask must have a column for each key, those in the cache included",
            "True = real token; (batch, kv_len)",
            kv_mask=mask,
            key=call.key,
        )
    return mask[..., mask.shape[-1] - kv_len :]


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
