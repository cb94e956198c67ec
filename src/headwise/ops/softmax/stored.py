"""Softmax attention over keys and values as a cache holds them: numbers, 8 bits, pages."""

from typing import NamedTuple

import torch
from torch import Tensor

from headwise import _native
from headwise._forks import alone_after_fork
from headwise.ops.softmax import launch, refusals
from headwise.ops.softmax.api import attend, attend_with_lse
from headwise.ops.softmax.call import Attended, Call, Computed
from headwise.ops.softmax.dropout import draw_seed
from headwise.ops.softmax.launch import Added, Rules
from headwise.ops.softmax.settle import Extras, settle
from headwise.ops.softmax.tally import count
from headwise.ops.watchers import is_transformed, is_watched
from headwise.patterns.base import Pattern

# So many queries at a time are read in place, as the kernels have it.
FEW_QUERIES = 16


class StoredKeys(NamedTuple):
    """Keys and values of a batch as they are stored.

    Attributes:
        key: (batch, kv_heads, kv_len, head_dim) numbers, or int8 with scales. With ``pages``
            (pages, kv_heads, page, head_dim).
        value: Likewise, with ``value_dim``.
        key_scale: (batch or pages, kv_heads, kv_len or page) float32, what each row of 8 bits is
            multiplied by; ``None`` for numbers.
        value_scale: Likewise.
        pages: (batch, count) int32 on the CPU, the pages of each sample in order.
        paged_len: Keys of every sample, where they lie in pages.
    """

    key: Tensor
    value: Tensor
    key_scale: Tensor | None = None
    value_scale: Tensor | None = None
    pages: Tensor | None = None
    paged_len: int = 0

    @property
    def batch(self) -> int:
        """How many samples there are."""
        return self.key.shape[0] if self.pages is None else self.pages.shape[0]

    @property
    def kv_len(self) -> int:
        """How many keys a sample has."""
        return self.key.shape[2] if self.pages is None else self.paged_len

    @property
    def is_plain(self) -> bool:
        """Whether keys and values are tensors as ``attend`` takes them."""
        return self.pages is None and self.key_scale is None

    def dense(self, key_dtype: torch.dtype, value_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return keys and values as plain tensors of these dtypes, copied where they are not."""
        return (
            self._dense(self.key, self.key_scale, key_dtype),
            self._dense(self.value, self.value_scale, value_dtype),
        )

    def _dense(self, rows: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
        rows = self.in_order(rows)
        if scale is None:
            return rows.to(dtype)
        wide = torch.promote_types(dtype, torch.float32)
        return (rows.to(wide) * self.in_order(scale).unsqueeze(-1)).to(dtype)

    def in_order(self, stored: Tensor) -> Tensor:
        """Return what is stored in pages with the tokens of each sample in a row."""
        if self.pages is None:
            return stored
        found = stored[self.pages.to(stored.device, torch.int64)].transpose(1, 2).flatten(2, 3)
        return found[:, :, : self.paged_len]


def attend_stored(
    query: Tensor, stored: StoredKeys, pattern: Pattern | None, extras: Extras, backend: str
) -> Tensor:
    """Do what ``attend`` does over stored keys and values.

    Up to 16 queries without a gradient are answered in place by the compiled kernels. For all
    others keys and values are first written out as plain tensors, once. Where query and stored
    numbers have different dtypes, the wider one is computed in, and the output is rounded to the
    dtype of ``query``.
    """
    call = None if stored.is_plain else _in_place(query, stored, pattern, extras, False, backend)
    if call is not None:
        return _run(call, stored).output
    work, key, value = _written_out(query, stored)
    output = attend(work, key, value, pattern, **extras._asdict(), backend=backend)
    return output if work is query else output.to(query.dtype)


def attend_stored_with_lse(
    query: Tensor, stored: StoredKeys, pattern: Pattern | None, extras: Extras, backend: str
) -> Attended:
    """Do what ``attend_with_lse`` does over stored keys and values, as ``attend_stored``."""
    call = None if stored.is_plain else _in_place(query, stored, pattern, extras, True, backend)
    if call is not None:
        output, lse = _run(call, stored)
        assert lse is not None
        return Attended(output, lse)
    work, key, value = _written_out(query, stored)
    found = attend_with_lse(work, key, value, pattern, **extras._asdict(), backend=backend)
    return Attended(found.output.to(query.dtype), found.lse)


def _written_out(query: Tensor, stored: StoredKeys) -> tuple[Tensor, Tensor, Tensor]:
    """Return query, keys and values in one dtype, keys and values as plain tensors."""
    work = query.dtype
    if stored.is_plain and stored.key.dtype == work and stored.value.dtype == work:
        return query, stored.key, stored.value
    if stored.key_scale is None:
        work = torch.promote_types(work, stored.key.dtype)
    return query.to(work), *stored.dense(work, work)


def _in_place(
    query: Tensor,
    stored: StoredKeys,
    pattern: Pattern | None,
    extras: Extras,
    want_lse: bool,
    backend: str,
) -> Call | None:
    """Return the call that the kernels answer in place; ``None`` where they do not."""
    if _native.kernels is None or backend not in ("auto", "native"):
        return None
    if not isinstance(query, Tensor) or query.ndim != 4 or is_transformed() or is_watched(query):
        return None
    if query.shape[2] > FEW_QUERIES or not query.numel() or not stored.kv_len:
        return None
    if stored.key_scale is None and query.dtype != stored.key.dtype:
        return None
    if torch._C._is_any_autocast_enabled() and query.dtype != torch.get_autocast_dtype(
        query.device.type
    ):
        return None
    call = settle(
        "attend_with_lse" if want_lse else "attend",
        query,
        _outline(stored.key, stored, query),
        _outline(stored.value, stored, query),
        pattern,
        extras,
        want_lse,
    )
    watched = is_watched(call.bias, call.sinks)
    return None if call.wants_gradient or watched or refusals.native(call) else call


def _outline(rows: Tensor, stored: StoredKeys, query: Tensor) -> Tensor:
    """Return a tensor of one number in the shape that keys or values would have, written out."""
    shape = (stored.batch, rows.shape[1], stored.kv_len, rows.shape[3])
    return query.new_zeros((), device=rows.device).expand(shape)


@alone_after_fork
def _run(call: Call, stored: StoredKeys) -> Computed:
    count("native")
    table, lowest = (None, 0) if call.distances is None else call.distances
    seed = draw_seed() if call.dropout_p > 0.0 else None
    sinks = None if call.sinks is None else call.sinks.float()
    added = Added(call.bias, call.slopes, table, sinks, seed)
    softcap = 0.0 if call.softcap is None else call.softcap
    rules = Rules(call.pattern, (), call.places, lowest, call.scale, softcap, call.dropout_p)
    query = launch.dense_rows(call.query)
    output = launch.like(query, stored.value.shape[3])
    lse = launch.lse_like(query) if call.want_lse else None
    launch.kernels().attend_stored(
        *(query, stored.key, stored.value, output, lse),
        *(stored.key_scale, stored.value_scale, stored.pages, stored.kv_len),
        *launch.rest(query, call.key, added, rules, ()),
    )
    return Computed(output, None if lse is None else lse.sum(-1))
