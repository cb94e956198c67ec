"""Mixes the tokens of a layer's call: by softmax attention, or by its mechanism."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from headwise._checks import refuse_dtypes, refuse_shapes
from headwise._dims import Output
from headwise.cache import KVCache
from headwise.errors import CacheError
from headwise.nn.cached_states import check_room, check_rows, padding_of_new
from headwise.nn.mechanism import AttentionCall, Mechanism, Step
from headwise.ops import attend


def mix(call: AttentionCall, mechanism: Mechanism | None) -> Output:
    """Return (batch, q_heads, q_len, value_dim), without the batch for a call without one."""
    if mechanism is None:
        return attend(call.query, call.key, call.value, call.allowed, **call.keywords())
    asked = _batched(call)
    run = mechanism if isinstance(mechanism, nn.Module) else mechanism.forward
    output = _looked_at(run(asked), mechanism, asked)
    return output if call.query.ndim == 4 else output.squeeze(0)


def mix_cached(
    call: AttentionCall,
    mechanism: Mechanism | None,
    cache: KVCache,
    slot: int,
    q_lengths: Sequence[int] | Tensor | None = None,
) -> Output:
    """Append the call's keys and values to a layer of the cache, then mix all it holds.

    A mechanism with a state keeps that there, and no keys and values.
    """
    if mechanism is None:
        keywords = call.keywords()
        return cache.attend(
            call.query,
            call.key,
            call.value,
            call.allowed,
            layer=slot,
            q_lengths=q_lengths,
            **keywords,
        )
    if q_lengths is not None:
        raise CacheError(
            "MultiHeadAttention: q_lengths is for softmax attention, and this layer has the "
            f"mechanism {type(mechanism).__name__}\n"
            "  hint: give rows of one length, and mark padding with kv_mask="
        )
    asked = _batched(call)
    state = cache.state(slot)
    if state is None:
        state = mechanism.state(asked)
        if state is None:
            tracked = call.query.requires_grad
            with cache.appended(call.key, call.value, layer=slot, tracked=tracked) as stored:
                return mix(call._replace(key=stored.key, value=stored.value), mechanism)
    else:
        check_rows(state, asked, slot)
    held, new = cache.length(slot), call.key.shape[-2]
    check_room(cache, type(mechanism).__name__, held, new)
    asked = asked._replace(kv_mask=padding_of_new(asked.kv_mask, held, new))
    run = mechanism if isinstance(mechanism, nn.Module) else mechanism.forward
    step = run(asked, state)
    output = _looked_at(step, mechanism, asked)
    cache.set_state(slot, step.state, length=held + new)
    return output if call.query.ndim == 4 else output.squeeze(0)


def _batched(call: AttentionCall) -> AttentionCall:
    """Return the call with a batch of 1 where it has none."""
    if call.query.ndim == 4:
        return call
    bias, kv_mask = call.bias, call.kv_mask
    return call._replace(
        query=call.query.unsqueeze(0),
        key=call.key.unsqueeze(0),
        value=call.value.unsqueeze(0),
        bias=bias.unsqueeze(0) if isinstance(bias, Tensor) and bias.ndim == 3 else bias,
        kv_mask=kv_mask.unsqueeze(0) if kv_mask is not None and kv_mask.ndim == 1 else kv_mask,
    )


def _looked_at(found: object, mechanism: Mechanism, call: AttentionCall) -> Tensor:
    """Return the output of a step, or refuse what is none of this call."""
    name, query = type(mechanism).__name__, call.query
    if not isinstance(found, Step) or not isinstance(found.output, Tensor):
        got = "a Step without a tensor" if isinstance(found, Step) else type(found).__name__
        raise TypeError(
            f"MultiHeadAttention: the mechanism {name} must return a headwise.nn.Step, got {got}\n"
            "  hint: return Step(output, None), or Step(output, state) for one with a state"
        )
    wanted = (*query.shape[:-1], call.value.shape[-1])
    if found.output.shape != wanted:
        raise refuse_shapes(
            "MultiHeadAttention",
            f"the output of the mechanism {name} must be {wanted}",
            "a mechanism returns (batch, q_heads, q_len, value_dim), heads before tokens",
            query=query,
            value=call.value,
            output=found.output,
        )
    kind = query.device.type
    cast = kind != "meta" and torch.is_autocast_enabled(kind)
    if found.output.dtype != query.dtype and not cast:
        raise refuse_dtypes(
            "MultiHeadAttention",
            f"the output of the mechanism {name} must have the dtype of the query",
            "convert it back with .to(call.query.dtype)",
            query=query,
            output=found.output,
        )
    return found.output
