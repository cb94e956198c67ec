"""What the calls of a cache refuse before they look at what is stored."""

from collections.abc import Iterable

import torch
from torch import Tensor

from headwise._checks import is_int
from headwise.cache.states import Nest, check_nest
from headwise.cache.storage import check_tensors
from headwise.errors import CacheError

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def check_tokens(
    query: Tensor, key: Tensor | None, value: Tensor | None, *, has_lengths: bool
) -> None:
    """Refuse keys without values, and lengths that could be of queries or of keys."""
    check_tensors("KVCache.attend", query=query)
    if (key is None) != (value is None):
        raise CacheError(
            "KVCache.attend: key and value must be given together\n"
            "  hint: leave both out to attend to what is stored"
        )
    if key is not None:
        check_tensors("KVCache.attend", key=key, value=value)
    if has_lengths and key is not None and key.shape[-2] != query.shape[-2]:
        raise CacheError(
            "KVCache.attend: with q_lengths, query must be of the tokens that are appended, "
            f"got {query.shape[-2]} queries and {key.shape[-2]} keys\n"
            "  hint: append first, and attend without key and value"
        )


def refuse_export(caller: str) -> None:
    """Refuse to become part of an exported graph, which would keep what is stored now for good.

    Raises:
        CacheError: ``torch.export`` traces the call.
    """
    if torch.compiler.is_exporting():
        raise CacheError(
            f"{caller}: a cache is an object of Python that grows, and an exported graph holds "
            "tensors alone, so every run would start from what is stored now\n"
            "  hint: export the call over whole sequences, without cache=; torch.compile takes "
            "caches"
        )


def check_length(length: int) -> None:
    """Refuse what ``crop`` cannot keep."""
    if not is_int(length) or length < 0:
        raise CacheError(
            f"KVCache.crop: length must be an int of at least 0, got {length!r}\n"
            "  hint: say how many tokens to keep, as in crop(cache.length() - 1)"
        )


def check_layer(caller: str, layer: int) -> None:
    """Refuse what is no number of a layer."""
    if not is_int(layer) or layer < 0:
        raise CacheError(
            f"{caller}: layer must be an int of at least 0, got {layer!r}\n"
            "  hint: layers count from 0, as those of a model"
        )


def check_layers(layers: Iterable[int], used: set[int]) -> set[int]:
    """Return the layers that ``crop`` is asked for, or refuse them."""
    if not isinstance(layers, Iterable):
        raise CacheError(
            f"KVCache.crop: layers must be several numbers, got {layers!r}\n"
            "  hint: put a single one in a list"
        )
    found = list(layers)
    for layer in found:
        check_layer("KVCache.crop", layer)
    if not used.issuperset(found):
        raise CacheError(
            f"KVCache.crop: layers must hold something, got {sorted(found)}, and "
            f"{sorted(used)} do\n  hint: leave layers out to crop all"
        )
    return set(found)


def check_rows_of_state(layer: int, state: Nest, batch: int | None) -> None:
    """Refuse tokens of another batch than that of the state beside them."""
    if state is None or batch is None:
        return
    rows = check_nest(state)
    if rows != batch:
        raise CacheError(
            f"KVCache: layer {layer} has a state of {rows} samples, and key and value are of "
            f"{batch}\n  hint: one cache serves one batch of one model; reset() starts anew"
        )


def check_index(index: Tensor, batches: set[int]) -> None:
    """Refuse what ``reorder`` cannot take rows from."""
    if not isinstance(index, Tensor):
        raise CacheError(
            f"KVCache.reorder: index must be a tensor, got {type(index).__name__}\n"
            "  hint: torch.tensor([...]) makes one of a list"
        )
    if index.ndim != 1 or index.dtype not in _INTEGERS:
        raise CacheError(
            f"KVCache.reorder: index must be 1-D integers, got {tuple(index.shape)} "
            f"{index.dtype}\n  hint: give for each sample the number of its source"
        )
    if len(batches) > 1:
        raise CacheError(
            f"KVCache.reorder: all layers must be of one batch, got {sorted(batches)} samples\n"
            "  hint: keep what is of another batch in a cache of its own"
        )
    for batch in batches:
        if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < batch:
            raise CacheError(
                f"KVCache.reorder: index must name samples 0 to {batch - 1}, "
                f"got {index.tolist()}\n  hint: give for each sample the number of its source"
            )
    if not index.numel() and batches != {0}:
        raise CacheError(
            "KVCache.reorder: index must name a sample, got none\n"
            "  hint: reset() forgets all samples"
        )
