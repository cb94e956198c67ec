"""Which tokens of a call are real, and where the first one of each sample stands."""

import torch
from torch import Tensor

from headwise.errors import PatternError
from headwise.models.cache import Cache
from headwise.models.settings import knows_distances_only
from headwise.nn import LowRank, MultiHeadAttention
from headwise.ops.watchers import is_transformed, is_watched


def real_tokens(name: str, mask: Tensor | None, batch: int, length: int) -> Tensor | None:
    """Return an attention mask of transformers as booleans; ``None`` where all tokens are real.

    Args:
        name: What the argument is called.
        mask: (batch, length), 1 or ``True`` = real token, those in a cache included.
        batch: Samples of the call.
        length: Its tokens.

    Raises:
        PatternError: A mask of other sizes or of other numbers.
    """
    if mask is None:
        return None
    if mask.shape != (batch, length):
        raise PatternError(
            f"HeadwiseModel: {name} must be ({batch}, {length}), one number for each token, those "
            f"in the cache included, got {tuple(mask.shape)}\n"
            "  hint: who may attend to whom beyond padding is pattern= of the configuration"
        )
    real = mask if mask.dtype == torch.bool else mask != 0
    if _is_traced(mask):
        return real
    if mask.dtype != torch.bool and not bool(((mask == 1) | ~real).all()):
        raise PatternError(
            f"HeadwiseModel: {name} must hold 1 for real tokens and 0 for padding, got "
            f"{mask[(mask != 1) & real].flatten()[:1].item()}\n"
            "  hint: numbers that are added to scores are not taken; True = may attend"
        )
    return None if bool(real.all()) else real


def first_place(
    real: Tensor | None,
    position_ids: Tensor | None,
    batch: int,
    new: int,
    cache: Cache | None = None,
) -> int | Tensor:
    """Return where the first new token stands: one number, or one for each sample.

    Padding in front of a sample is not counted, unless ``position_ids`` say otherwise. Tokens
    behind those of a cache go on from where these stand.

    Args:
        real: (batch, tokens in the cache + new), ``True`` = real token.
        position_ids: (batch or 1, new), numbers that count up by one from token to token; those
            at padding mean nothing.
        batch: Samples of the call.
        new: New tokens.
        cache: What holds the tokens before them.

    Raises:
        PatternError: Positions of other sizes, that do not count up by one, or that do not go on
            where the cache ends.
    """
    held = 0 if cache is None else cache.get_seq_length()
    counted = held if real is None else held - in_front(real)
    if cache is not None and held:
        counted = counted + cache.shift
    start = counted
    if position_ids is not None and batch and new:
        _check_sizes(position_ids, batch, new)
        start = _given_place(position_ids.expand(batch, -1), real, counted, held)
    if cache is not None and held and not bool(torch.as_tensor(start == counted).all()):
        raise _refusal(
            f"with a cache must go on where its tokens end, at {_shown(counted)}, got "
            f"{_shown(start)}"
        )
    if cache is not None and not held:
        cache.shift = start - counted
    return start


def in_front(real: Tensor) -> Tensor:
    """Return how much padding stands in front of each sample, (batch,)."""
    return (~real).cumprod(-1).sum(-1)


def _check_sizes(position_ids: Tensor, batch: int, new: int) -> None:
    if position_ids.ndim != 2 or position_ids.shape[0] not in (1, batch):
        raise _refusal(f"must be ({batch}, {new}), got {tuple(position_ids.shape)}")
    if position_ids.shape[1] != new:
        raise _refusal(f"must be of the {new} new tokens, got {position_ids.shape[1]}")


def _given_place(
    position_ids: Tensor, real: Tensor | None, counted: int | Tensor, held: int
) -> int | Tensor:
    if _is_traced(position_ids):
        raise _refusal("cannot be checked while a call is traced")
    starts = position_ids - torch.arange(position_ids.shape[1], device=position_ids.device)
    shown = torch.ones_like(starts, dtype=torch.bool) if real is None else real[:, held:]
    found = starts.gather(1, shown.long().argmax(-1, keepdim=True)).squeeze(1)
    if bool(((starts != found[:, None]) & shown).any()):
        raise _refusal(f"must count up by one from token to token, got {position_ids.tolist()}")
    found = torch.where(shown.any(-1), found, counted)
    return int(found[0]) if bool((found == found[0]).all()) else found


def needs_places(attention: MultiHeadAttention) -> bool:
    """Say whether a layer computes something else where all its tokens move by as many places.

    Softmax attention does not, with positions that count distances and a pattern that does. The
    features of linear attention do where its queries and keys are turned. Low-rank attention reads
    places of the call, whatever they are called.
    """
    if attention.mechanism is not None:
        return attention.positions is not None and not isinstance(attention.mechanism, LowRank)
    return attention.pattern is not None and not knows_distances_only(attention.pattern)


def _shown(place: int | Tensor) -> object:
    return place.tolist() if isinstance(place, Tensor) else place


def _is_traced(tensor: Tensor) -> bool:
    return tensor.is_meta or is_watched(tensor) or is_transformed()


def _refusal(problem: str) -> PatternError:
    return PatternError(
        f"HeadwiseModel: position_ids {problem}\n"
        "  hint: leave them out: tokens are counted from the first real one of each sample; "
        "several texts in a row need a model call each"
    )
