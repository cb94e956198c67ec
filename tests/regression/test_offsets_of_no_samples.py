"""Offsets per sample, where there are no samples: the call is empty, not an error."""

import pytest
import torch

import headwise as hw
from headwise.patterns import Pattern


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("pattern", [None, hw.Causal()])
def test_an_empty_batch_takes_empty_offsets(backend: str, pattern: Pattern | None) -> None:
    query = torch.randn(0, 3, 5, 4)
    none = torch.zeros(0, dtype=torch.int64)
    output = hw.attend(query, query, query, pattern, q_offset=none, kv_offset=none, backend=backend)
    assert output.shape == (0, 3, 5, 4)


def test_samples_without_offsets_are_refused() -> None:
    query = torch.randn(2, 3, 5, 4)
    with pytest.raises(hw.PatternError, match="must hold a position for every sample, got none"):
        hw.attend(query, query, query, q_offset=torch.zeros(0, dtype=torch.int64))
