"""What a cache must be, and a call must bring, where a mechanism keeps a state in it."""

from torch import Tensor

from headwise.cache import KVCache
from headwise.cache.limits import refuse_export
from headwise.cache.states import Nest, check_nest
from headwise.errors import CacheError, PatternError
from headwise.nn.mechanism import AttentionCall

_CALLER = "MultiHeadAttention"


def check_room(cache: KVCache, mechanism: str, held: int, new: int) -> None:
    """Refuse settings that say how keys and values are kept, and more tokens than the capacity.

    Raises:
        CacheError: A window, a dtype, a pool, a capacity that is used up, or an export.
    """
    refuse_export(_CALLER)
    for name, given in (("window", cache.window), ("dtype", cache.dtype), ("pool", cache.pool)):
        if given is not None:
            shown = "" if name == "pool" else f"={given}"
            raise CacheError(
                f"{_CALLER}: {name}{shown} of the cache is about keys and values, and the "
                f"mechanism {mechanism} keeps a state in place of them, of all tokens\n"
                f"  hint: headwise.KVCache() without {name}, for these layers"
            )
    if cache.capacity is not None and held + new > cache.capacity:
        raise CacheError(
            f"{_CALLER}: capacity of the cache is {cache.capacity} tokens, the state of the "
            f"mechanism {mechanism} stands for {held}, and {new} more were given\n"
            "  hint: a state does not grow; build the cache with a larger capacity, or without one"
        )


def check_rows(state: Nest, call: AttentionCall, slot: int) -> None:
    """Refuse a call of another batch than that of the state.

    Raises:
        CacheError: It is of another batch.
    """
    kept, given = check_nest(state), call.query.shape[0]
    if kept != given:
        raise CacheError(
            f"{_CALLER}: layer {slot} of the cache keeps a state of {kept} samples, and the call "
            f"is of {given}\n  hint: one cache serves one batch of one model; reset() starts anew"
        )


def padding_of_new(kv_mask: Tensor | None, held: int, new: int) -> Tensor | None:
    """Return which new keys are real; those in the state have been left out before.

    Raises:
        PatternError: A mask that has not one column for each key.
    """
    if kv_mask is None:
        return None
    if kv_mask.shape[-1:] != (held + new,):
        raise PatternError(
            f"{_CALLER}: kv_mask must have a column for each key, {held} of the cache and {new} "
            f"new ones, got {tuple(kv_mask.shape)}\n"
            "  hint: True = real token; tokens in the cache have columns, too"
        )
    return kv_mask[..., held:]
