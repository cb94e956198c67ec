"""The meaning of every pattern, pair by pair, in plain Python."""

from itertools import product
from typing import Any

import torch
from torch import Tensor

from headwise.patterns import (
    Both,
    Causal,
    Dense,
    Documents,
    Either,
    Full,
    KeyMask,
    Lengths,
    Not,
    Pattern,
    Prefix,
    Window,
)
from tests.support.strategies import Setting


def spelled(pattern: Pattern, setting: Setting) -> Tensor:
    """Ask every pair of a call on its own; (batch, heads, q_len, kv_len)."""
    shape = (setting.batch, setting.heads, setting.q_len, setting.kv_len)
    answer = torch.zeros(shape, dtype=torch.bool)
    for b, h, row, column in product(*(range(size) for size in shape)):
        answer[b, h, row, column] = _sees(pattern, setting, (b, h, row, column))
    return answer


def _sees(pattern: Pattern, setting: Setting, pair: tuple[int, int, int, int]) -> bool:
    match pattern:
        case Both(first=a, second=b):
            return _sees(a, setting, pair) and _sees(b, setting, pair)
        case Either(first=a, second=b):
            return _sees(a, setting, pair) or _sees(b, setting, pair)
        case Not(inner=a):
            return not _sees(a, setting, pair)
        case Dense() | KeyMask():
            return _marked(pattern, pair)
        case _:
            query, key = setting.positions(pair[0])
            return _sees_at(pattern, pair[0], query + pair[2], key + pair[3])


def _sees_at(pattern: Pattern, sample: int, query: int, key: int) -> bool:
    match pattern:
        case Full():
            return True
        case Causal():
            return key <= query
        case Window(left=left, right=right, dilation=step):
            bounds = [query + n * step for n in range(-(left or 0), (right or 0) + 1)]
            if left is None:
                bounds += range(query, query - 10_000, -step)
            if right is None:
                bounds += range(query, query + 10_000, step)
            return key in bounds
        case Prefix(length=length):
            return key < _of(length, sample)
        case Lengths(kv_lengths=keys, q_lengths=queries):
            real = queries is None or query < _of(queries, sample)
            return real and key < _of(keys, sample)
        case Documents(ids=ids, kv_ids=kv_ids):
            mine = _row(ids.tensor, sample)[query]
            return mine >= 0 and mine == _row((kv_ids or ids).tensor, sample)[key]
    raise AssertionError(f"no rule is written down for {pattern}")


def _of(counts: Any, sample: int) -> int:
    if isinstance(counts, int):
        return counts
    return int(counts[sample % len(counts)])


def _row(numbers: Tensor, sample: int) -> list[int]:
    chosen = numbers if numbers.ndim == 1 else numbers[sample % len(numbers)]
    return [int(number) for number in chosen]


def _marked(pattern: Dense | KeyMask, pair: tuple[int, int, int, int]) -> bool:
    mask, (b, h, row, column) = pattern.mask.tensor, pair
    if mask.ndim == 1:
        return bool(mask[column])
    wanted = {4: (b, h, row, column), 2: (row, column)}[mask.ndim]
    if isinstance(pattern, KeyMask):
        wanted = (b, column)
    return bool(mask[tuple(n % size for n, size in zip(wanted, mask.shape, strict=True))])
