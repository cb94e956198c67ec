"""Asks a mechanism what attention of a converted module asks, in the mechanism's own terms."""

from typing import Any, NamedTuple, TypedDict

from torch import Tensor, nn

from headwise.hf.conversion.converted import Converted
from headwise.nn.mechanism import AttentionCall
from headwise.nn.mixing import mix
from headwise.patterns import Both, Causal, Dense, Full, KeyMask, Pattern


class Extras(TypedDict):
    """What a call says beside queries, keys, values and their pattern, as ``attend`` takes it."""

    bias: Tensor | None
    scale: float | None
    softcap: float | None
    sinks: Tensor | None
    q_offset: int | None
    kv_offset: int


class Call(NamedTuple):
    """One call of attention as transformers makes it, with the mask read.

    Attributes:
        module: Who calls.
        heads: Queries, keys and values, (batch, heads, length, dim).
        pattern: Who may attend to whom, padding included.
        dropout_p: Share of weights to drop.
        extras: What it says beside these.
    """

    module: nn.Module
    heads: tuple[Tensor, Tensor, Tensor]
    pattern: Pattern
    dropout_p: float
    extras: Extras


def without_room(call: Call) -> Call:
    """Leave out the room of a static cache that no token has reached.

    So the last key is the last token, as patterns count that begin at the end, and mechanisms.
    """
    (query, key, value), extras = call.heads, call.extras
    if extras["q_offset"] is None:
        return call
    end = extras["q_offset"] + query.shape[2] - extras["kv_offset"]
    if end >= key.shape[2]:
        return call
    rest, real = _split(call.pattern, query.shape[2], key)
    bias = extras["bias"]
    if bias is not None and bias.shape[-1] == key.shape[2]:
        extras = {**extras, "bias": bias[..., :end]}
    return call._replace(
        heads=(query, key[:, :, :end], value[:, :, :end]),
        pattern=rest if real is None else rest & KeyMask(real[:, :end]),
        extras=extras,
    )


def mixed(converted: Converted, call: Call, wants_weights: bool) -> tuple[Tensor, Tensor | None]:
    """Return what a mechanism makes of a call, and the weights that it amounts to.

    Raises:
        NotImplementedError: Dropout of weights that the mechanism does not have, or weights of a
            mechanism that cannot say them.
    """
    mechanism = converted.mechanism
    if call.dropout_p > 0.0 and not converted.drops:
        raise NotImplementedError(
            f"attn_implementation='headwise': {type(call.module).__name__} drops attention weights "
            f"in training, got {call.dropout_p}, and {converted.described()} has none\n"
            "  hint: load the model with its attention dropout at 0.0 "
            "(attention_probs_dropout_prob, attention_dropout or attn_pdrop in its configuration)"
        )
    asked = _asked(call)
    output = mix(asked, mechanism)
    if not wants_weights:
        return output, None
    if not hasattr(mechanism, "weights"):
        raise NotImplementedError(
            f"attn_implementation='headwise': output_attentions asks for weights, and "
            f"{type(mechanism).__name__} of {type(call.module).__name__} has no method weights\n"
            "  hint: leave output_attentions out"
        )
    found: Tensor = mechanism.weights(asked)
    return output, found


def _asked(call: Call) -> AttentionCall:
    """Return the call in the terms of a mechanism.

    A mechanism has ``head_dim ** -0.5`` for its scale, or none, so queries are multiplied by what
    makes that the scale of the model.
    """
    query, key, value = call.heads
    width, named = query.shape[-1], dict[str, Any](call.extras)
    scale = named.pop("scale")
    if scale is not None and scale != width**-0.5:
        query = query * (scale * width**0.5)
    pattern, real = _split(call.pattern, query.shape[2], key)
    if real is not None:
        real = real.to(query.device)
    if query.shape[2] == 1 and getattr(call.module, "is_causal", False):
        pattern = (pattern & Causal()).simplified()
    return AttentionCall(
        query,
        key,
        value,
        pattern=None if isinstance(pattern, Full) else pattern,
        kv_mask=real,
        dropout_p=call.dropout_p,
        **named,
    )


def _split(pattern: Pattern, q_len: int, key: Tensor) -> tuple[Pattern, Tensor | None]:
    """Take padding out of a pattern: return the rest, and which keys are real, (batch, kv_len)."""
    rest: Pattern = Full()
    real: Tensor | None = None
    for part in _parts(pattern):
        mask = _padding(part, q_len, key)
        if mask is None:
            rest = (rest & part).simplified()
        else:
            mask = mask.expand(key.shape[0], -1)
            real = mask if real is None else real & mask
    return rest, real


def _parts(pattern: Pattern) -> list[Pattern]:
    if isinstance(pattern, Both):
        return [*_parts(pattern.first), *_parts(pattern.second)]
    return [pattern]


def _padding(part: Pattern, q_len: int, key: Tensor) -> Tensor | None:
    """Return the keys that a part hides from all; of one query a plain mask tells no more."""
    if isinstance(part, KeyMask):
        mask: Tensor = part.mask.tensor
        return mask.reshape(-1, mask.shape[-1])
    if isinstance(part, Dense) and q_len == 1 and part.num_heads in (None, 1):
        return part.dense(1, key.shape[2]).reshape(-1, key.shape[2])
    return None
