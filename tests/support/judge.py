"""Runs one call on one path and judges output and log-sum-exp by the oracle."""

from typing import Any

import torch
from torch import Tensor

import headwise as hw
from headwise.patterns import Pattern
from tests.support.budget import assert_within_budget
from tests.support.oracle import attention, unlucky
from tests.support.paths import Path

OFFSETS = ("q_offset", "kv_offset")


def judged(
    path: Path,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pattern: Pattern | None = None,
    *,
    visible: Tensor | None = None,
    label: str = "",
    **keywords: Any,
) -> Tensor:
    """Return the output of a call after comparing it with the oracle.

    Args:
        path: Where to run.
        query: As in ``attend``.
        key: As in ``attend``.
        value: As in ``attend``.
        pattern: As in ``attend``.
        visible: The mask that the pattern should amount to, written down by the test;
            ``None`` = every pair.
        label: What to call the case in a failure.
        keywords: Further arguments of ``attend``.
    """
    rest = {name: item for name, item in keywords.items() if name not in OFFSETS}
    exact = attention(query, key, value, visible, **rest)
    plain = unlucky(query, key, value, visible, exact=exact, **rest, dtype=query.dtype)
    label = f"{path} {label}"
    with path.taken() as backend:
        output = hw.attend(query, key, value, pattern, backend=backend, **keywords)
        if backend != "sdpa":
            found = hw.attend_with_lse(query, key, value, pattern, backend=backend, **keywords)
            wide = torch.promote_types(query.dtype, torch.float32)
            near = unlucky(query, key, value, visible, exact=exact, **rest, dtype=wide).lse
            assert_within_budget(found.lse, exact=exact.lse, plain=near, label=f"{label} lse")
            assert torch.equal(found.output, output)
    assert output.dtype == query.dtype
    assert_within_budget(output, exact=exact.output, plain=plain.output, label=label)
    return output
