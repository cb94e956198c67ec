"""What the parts of a file must agree in before a cache is made of them."""

import json
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

from headwise._checks import is_int
from headwise.cache.kinds import Kind
from headwise.cache.row_counts import RowCounts, gathered, listed
from headwise.cache.row_formats import Tensors
from headwise.cache.storage import Given
from headwise.cache.window import Sizes


def counts_of(said: Any, batch: int) -> RowCounts:  # noqa: ANN401
    """Return counts of all rows, or of each; raise ``ValueError`` for anything else."""
    counts = list(said) if isinstance(said, list) else [said] * max(batch, 1)
    if isinstance(said, list) and len(counts) != batch:
        raise ValueError(f"{len(counts)} counts for {batch} rows")
    if any(not is_int(count) or count < 0 for count in counts):
        raise ValueError(f"counts of tokens {counts}")
    return gathered(counts)


def number_of(name: str) -> int:
    """Return the number of a layer; raise ``ValueError`` for a name that is none."""
    if not name.isdecimal() or str(int(name)) != name:
        raise ValueError(f"a layer {name!r}")
    return int(name)


def check_names(what: str, said: dict[str, Any], wanted: set[str]) -> None:
    """Raise ``ValueError`` for a part of a description that says more or less than it should."""
    if set(said) != wanted:
        raise ValueError(f"a {what} of {sorted(said)} where {sorted(wanted)} are said")


def sum_of(described: str, tensors: dict[str, Tensor]) -> str:
    """Return a sum over a description, and over names, dtypes and shapes of the tensors."""
    kinds = {name: (str(each.dtype), list(each.shape)) for name, each in tensors.items()}
    whole = json.dumps([described, kinds], sort_keys=True)
    return sha256(whole.encode()).hexdigest()


def length_of_state(said: Any) -> int | None:  # noqa: ANN401
    """Return how many tokens a state stands for; raise ``ValueError`` for no count."""
    if said is not None and (not is_int(said) or said < 0):
        raise ValueError(f"a state of {said!r} tokens")
    return None if said is None else int(said)


def check_rows(rows: Tensors, given: Given, kind: Kind) -> None:
    """Raise ``ValueError`` for tensors that are not the keys and values described."""
    in_eight = kind.dtype == torch.int8
    shapes = [tuple(row.shape) for row in rows]
    tokens = shapes[0][2] if shapes and len(shapes[0]) > 2 else 0
    alike = (given.batch, given.kv_heads, tokens)
    wanted = [(*alike, width) for width in given.widths] + [alike, alike] * in_eight
    if shapes != wanted:
        raise ValueError(f"tensors of {shapes} where {wanted} are described")
    kept = given.dtypes if kind.dtype is None else (kind.dtype, kind.dtype)
    dtypes = [*kept, torch.float32, torch.float32][: len(wanted)]
    if [row.dtype for row in rows] != dtypes:
        raise ValueError(f"tensors of {[row.dtype for row in rows]} where {dtypes} are described")
    if not all(dtype.is_floating_point for dtype in given.dtypes):
        raise ValueError(f"tokens in {given.dtypes}")


def check_counts(counts: dict[str, RowCounts], rows: Tensors, given: Given, kind: Kind) -> None:
    """Raise ``ValueError`` for counts that do not tell which tokens the tensors hold."""
    more = set() if kind.window is None else {"starts", "reached"}
    check_names("count", counts, {"lengths"} | more)
    lengths, tokens = listed(counts["lengths"], given.batch or 1), rows[0].shape[2]
    ends = lengths
    if kind.window is not None:
        sizes = Sizes(kind.window, kind.keep_first, kind.rollback)
        starts, reached = (listed(counts[name], len(lengths)) for name in ("starts", "reached"))
        ends = [kind.keep_first + n - start for n, start in zip(lengths, starts, strict=True)]
        for length, start, most in zip(lengths, starts, reached, strict=True):
            is_kept = kind.keep_first <= start <= max(length, kind.keep_first)
            if (
                not is_kept
                or start > sizes.needed(most)
                or not 0 <= most - length <= sizes.rollback
            ):
                raise ValueError(f"a window of {length} tokens from {start} on, of {most}")
    if max(ends) != tokens or min(ends) < 0:
        raise ValueError(f"counts {counts} for {tokens} tokens")
