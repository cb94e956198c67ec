"""K11, B80: a window of 8 dropped its oldest token when the total reached 8, not behind it.

transformers#37574, #38046.
"""

import pytest
import torch

import headwise as hw

WINDOW = 8


@pytest.mark.parametrize("rollback", [0, 1, 16])
@pytest.mark.parametrize("pieces", [[6, 1, 1, 1, 1], [1] * 30, [20, 1, 1], [7, 9, 8, 1], [8, 1]])
@pytest.mark.parametrize("dtype", [None, torch.int8], ids=str)
def test_what_a_token_sees_after_so_many(
    rollback: int, pieces: list[int], dtype: torch.dtype | None
) -> None:
    """Equal scores, and values that name their token: the output is the mean of those seen."""
    cache = hw.KVCache(window=WINDOW, rollback=rollback, dtype=dtype)
    end = 0
    for new in pieces:
        names = torch.eye(sum(pieces))[end : end + new].expand(1, 1, -1, -1)
        zeros = torch.zeros(1, 1, new, 4)
        found = cache.attend(zeros, zeros, names)[0, 0]
        end += new
        for row in range(new):
            at = end - new + row
            seen = range(max(0, at - WINDOW + 1), at + 1)
            wanted = torch.zeros(sum(pieces))
            wanted[list(seen)] = 1 / len(seen)
            torch.testing.assert_close(found[row], wanted)
        assert cache.length() == end


def test_first_tokens_that_are_kept_are_seen_besides() -> None:
    cache = hw.KVCache(window=WINDOW, keep_first=2)
    for end in range(1, 31):
        names = torch.eye(30)[end - 1 : end].expand(1, 1, -1, -1)
        zeros = torch.zeros(1, 1, 1, 4)
        found = cache.attend(zeros, zeros, names)[0, 0, 0]
        seen = sorted({*range(min(2, end)), *range(max(0, end - WINDOW), end)})
        assert found.nonzero().flatten().tolist() == seen
