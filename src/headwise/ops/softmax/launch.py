"""Calls of the compiled kernels on tensors that hold data; knows nothing of autograd."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headwise import _native
from headwise.errors import BackendRefused
from headwise.ops.softmax.layouts import layout_of
from headwise.patterns.base import Pattern
from headwise.patterns.grid import Grid
from headwise.patterns.spelling import read


class Rules(NamedTuple):
    """What a call says besides its tensors.

    ``pattern`` is an object, or the text of a spelling with its ``numbers``; the tensors of a
    spelling travel apart. ``lowest`` is the distance of a table's first column. ``softcap`` and
    ``dropout_p`` are 0 where there is none.
    """

    pattern: Pattern | str | None
    numbers: Sequence[int]
    places: tuple[Grid, ...]
    lowest: int
    scale: float
    softcap: float
    dropout_p: float


class Added(NamedTuple):
    """Tensors that change the weights: at most one of the first three, sinks, a seed for dropout.

    ``bias`` is four-dimensional and broadcasts; ``slopes``, ``table`` and ``sinks`` are per query
    head. All are float32 and ``seed`` is (1,) int64.
    """

    bias: Tensor | None
    slopes: Tensor | None
    table: Tensor | None
    sinks: Tensor | None
    seed: Tensor | None


class Given(NamedTuple):
    """Query, key and value of a call, the output and the log-sum-exp they gave."""

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    lse: Tensor


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    added: Added,
    rules: Rules,
    tensors: tuple[Tensor, ...] = (),
    want_lse: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Return the output and, where wanted, the log-sum-exp."""
    output = like(query, value.shape[3])
    lse = lse_like(query) if want_lse else None
    kernels().attend(
        *(dense_rows(query), dense_rows(key), dense_rows(value), output, lse),
        *rest(query, key, added, rules, tensors),
    )
    return output, lse


def backward(
    d_output: Tensor,
    d_lse: Tensor | None,
    given: Given,
    added: Added,
    rules: Rules,
    tensors: tuple[Tensor, ...] = (),
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of query, key, value and sinks, the last empty without sinks."""
    query, key, value = given.query, given.key, given.value
    d_query = query.new_empty(query.shape, dtype=torch.float32)
    d_key, d_value = like(key, key.shape[3]), like(value, value.shape[3])
    d_sinks = sinks_like(query, added.sinks)
    kernels().attend_backward(
        *_upstream(d_output, d_lse),
        *_in_memory(given),
        *(d_query, d_key, d_value, None if added.sinks is None else d_sinks),
        *rest(query, key, added, rules, tensors),
    )
    return d_query.to(query.dtype), d_key, d_value, d_sinks


def bias_backward(
    d_output: Tensor,
    d_lse: Tensor | None,
    given: Given,
    added: Added,
    rules: Rules,
    tensors: tuple[Tensor, ...] = (),
) -> Tensor:
    """Return the gradient of the bias, in its own shape, or of the table."""
    found = added_like(added)
    kernels().bias_backward(
        *_upstream(d_output, d_lse),
        *_in_memory(given),
        *((None, found) if added.bias is None else (found, None)),
        *rest(given.query, given.key, added, rules, tensors),
    )
    return found


def like(heads: Tensor, dim: int) -> Tensor:
    """Allocate what belongs to ``heads``, with heads inside lengths where they lie so.

    Joining the heads again is then free, as it is for torch's own attention.
    """
    batch, count, length, _ = heads.shape
    if heads.stride(1) < heads.stride(2):
        return heads.new_empty(batch, length, count, dim).transpose(1, 2)
    return heads.new_empty(batch, count, length, dim)


def lse_like(query: Tensor) -> Tensor:
    """Allocate the log-sum-exp of every row in two parts: the highest score, and the rest."""
    return query.new_empty((*query.shape[:3], 2), dtype=torch.float32)


def sinks_like(query: Tensor, sinks: Tensor | None) -> Tensor:
    """Allocate the gradient of the sinks, empty where there are none."""
    return query.new_empty(0 if sinks is None else query.shape[1], dtype=torch.float32)


def added_like(added: Added) -> Tensor:
    """Allocate the gradient of the bias or the table."""
    learned = added.table if added.bias is None else added.bias
    assert learned is not None
    return learned.new_empty(learned.shape)


def _upstream(d_output: Tensor, d_lse: Tensor | None) -> tuple[Tensor, Tensor | None]:
    return dense_rows(d_output), None if d_lse is None else _plain(d_lse)[..., 0].contiguous()


def _in_memory(given: Given) -> tuple[Tensor, ...]:
    query, key, value, output, lse = given
    # vmap expands an output that all samples have; the kernels know outputs as what they write.
    shared = any(output.size(axis) > 1 and not output.stride(axis) for axis in range(3))
    output = output.contiguous() if shared else output
    rows = (dense_rows(tensor) for tensor in (query, key, value, output))
    return (*rows, _plain(lse).contiguous())


def rest(
    query: Tensor, key: Tensor, added: Added, rules: Rules, tensors: tuple[Tensor, ...]
) -> tuple[Any, ...]:
    """Return the arguments that all kernels end with."""
    batch, heads, q_len, _ = query.shape
    bias, slopes, table, sinks, seed = added
    if bias is not None:
        bias = _plain(bias).expand(batch, heads, q_len, key.shape[2])
    shifts = None
    if slopes is not None or table is not None:
        lowest = 0 if table is None else rules.lowest
        gaps = [place.q_offset - place.kv_offset - lowest for place in rules.places]
        shifts = torch.tensor(gaps, dtype=torch.int64, device="cpu")
    return (
        bias,
        None if slopes is None else _plain(slopes).contiguous(),
        None if table is None else _plain(table).contiguous(),
        shifts,
        None if sinks is None else _plain(sinks).contiguous(),
        rules.softcap,
        rules.dropout_p,
        0 if seed is None else int(seed),
        _live_tiles(rules, tensors),
        rules.scale,
        torch.get_num_threads(),
    )


def _live_tiles(rules: Rules, tensors: tuple[Tensor, ...]) -> Any:  # noqa: ANN401
    """Return the live tiles in the kernels' own form; ``None`` where all is allowed."""
    pattern = rules.pattern
    if pattern is None:
        return None
    if isinstance(pattern, str):
        pattern = read(pattern, rules.numbers, tensors)
    layout = layout_of(pattern, rules.places)
    if layout is None:
        return None
    if layout.for_kernels is None:
        tables = (layout.which, layout.starts, layout.entries, layout.bitmaps)
        layout.for_kernels = kernels().LiveTiles(*tables)
    return layout.for_kernels


def dense_rows(tensor: Tensor) -> Tensor:
    """Return the tensor with an innermost stride of 1, copied where it has another."""
    tensor = _plain(tensor)
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] < 2 else tensor.contiguous()


def _plain(tensor: Tensor) -> Tensor:
    """Return the numbers as they lie in memory, without a gradient or a pending sign."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    return tensor.resolve_neg() if tensor.is_neg() else tensor


def kernels() -> Any:  # noqa: ANN401
    """Return the compiled core, or refuse."""
    if _native.kernels is None:
        raise BackendRefused(
            f"headwise: {_native.reason}, and this graph was made for it\n"
            "  hint: make the graph again here, or install headwise with a C++ compiler at hand"
        )
    return _native.kernels
