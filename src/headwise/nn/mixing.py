"""Mixes the tokens of a layer's call: by softmax attention, or by its mechanism."""

from headwise._dims import Output
from headwise.cache import KVCache
from headwise.errors import CacheError
from headwise.nn.mechanism import AttentionCall, Mechanism
from headwise.ops import attend


def mix(call: AttentionCall, mechanism: Mechanism | None) -> Output:
    """Return (batch, q_heads, q_len, value_dim)."""
    if mechanism is not None:
        run = mechanism if callable(mechanism) else mechanism.forward
        return run(call).output
    return attend(
        call.query,
        call.key,
        call.value,
        call.allowed,
        bias=call.bias,
        softcap=call.softcap,
        sinks=call.sinks,
        dropout_p=call.dropout_p,
        q_offset=call.q_offset,
        kv_offset=call.kv_offset,
    )


def mix_cached(
    call: AttentionCall, mechanism: Mechanism | None, cache: KVCache, slot: int
) -> Output:
    """Append the call's keys and values to a layer of the cache, then mix all it holds."""
    if mechanism is None:
        return cache.attend(
            call.query,
            call.key,
            call.value,
            call.allowed,
            layer=slot,
            bias=call.bias,
            softcap=call.softcap,
            sinks=call.sinks,
            dropout_p=call.dropout_p,
            q_offset=call.q_offset,
            kv_offset=call.kv_offset,
        )
    if mechanism.state(call) is not None:
        raise CacheError(
            "MultiHeadAttention: a cache keeps keys and values, and this mechanism carries a "
            f"state: {mechanism!r}\n"
            "  hint: call the mechanism step by step with the state it returns"
        )
    tracked = call.query.requires_grad
    with cache.appended(call.key, call.value, layer=slot, tracked=tracked) as stored:
        return mix(call._replace(key=stored.key, value=stored.value), mechanism)
