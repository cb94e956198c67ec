"""The weights with which a layer mixes its tokens, computed beside the call."""

from torch import Tensor

from headwise._dims import Hidden, Memory, Weights
from headwise.cache import KVCache
from headwise.nn.attention import MultiHeadAttention
from headwise.nn.mechanism import AttentionCall
from headwise.nn.schemes import joined_bias, reads_padding
from headwise.ops import attention_weights


def weights_of(
    layer: MultiHeadAttention,
    query: Hidden,
    key: Memory | None = None,
    *,
    kv_mask: Tensor | None = None,
    q_offset: int | Tensor | None = None,
    cache: KVCache | None = None,
    slot: int | None = None,
) -> Weights:
    """Return the exact weights of a call of a layer, before dropout.

    Args:
        layer: The layer; one with a mechanism must say its weights (a method ``weights``).
        query: (batch, q_len, d_model), what the layer was given.
        key: The memory of cross attention, likewise.
        kv_mask: (batch, kv_len), ``True`` = real token.
        q_offset: Absolute position of the first query, where the call had one.
        cache: What the layer has appended ``query`` to, where it had one.
        slot: The layer's number in it.

    Returns:
        (batch, num_heads, q_len, kv_len).

    Raises:
        NotImplementedError: Weights that cannot be had: those of a mechanism without, or of a step
            whose earlier tokens are in a state or a window.
    """
    held = 0
    if cache is not None and key is None:
        held = cache.length(slot or 0) - query.shape[-2]
    if kv_mask is not None and reads_padding(layer.positions):
        raise _refusal(layer, "positions follow the padding, which only the call itself knows")
    first = held if key is None and q_offset is None else q_offset
    q, k, v = layer.project(query, key, q_offset=first)
    if held and cache is not None:
        if layer.mechanism is not None or cache.window is not None:
            raise _refusal(layer, f"the cache does not keep all of the {held} tokens before")
        stored = cache.stored(slot or 0)
        k, v = stored.key, stored.value
    call = AttentionCall(
        q,
        k,
        v,
        pattern=layer.pattern,
        kv_mask=kv_mask,
        bias=joined_bias(layer.positions, None),
        softcap=layer.softcap,
        sinks=layer.sinks,
        q_offset=q_offset,
        kv_offset=0 if q_offset is None or key is not None else q_offset - held,
    )
    if layer.mechanism is None:
        keywords = {name: value for name, value in call.keywords().items() if name != "dropout_p"}
        return attention_weights(call.query, call.key, call.allowed, **keywords)
    weigh = getattr(layer.mechanism, "weights", None)
    if not callable(weigh):
        raise _refusal(layer, f"{type(layer.mechanism).__name__} has no method weights")
    found: Tensor = weigh(call)
    return found


def _refusal(layer: MultiHeadAttention, reason: str) -> NotImplementedError:
    return NotImplementedError(
        f"{type(layer).__name__}: its weights cannot be given, for {reason}\n"
        "  hint: ask for them in a pass over all tokens without a cache, or leave them out"
    )
