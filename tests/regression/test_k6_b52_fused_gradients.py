"""B52: gradients of a fused path differed from those of the formula."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import headwise as hw
from tests.support.paths import Path, on_all_once
from tests.support.shapes import Inputs, Sizes
from tests.support.whole_calls import WholeCall, judged_whole, simple


def _uniform(sizes: Sizes, seed: int = 0) -> WholeCall:
    source = torch.Generator().manual_seed(seed)
    call = simple(sizes, pattern=hw.Causal() if seed % 2 else None)
    drawn = (torch.rand(t.shape, generator=source) * 2 - 1 for t in call.given)
    return simple(sizes, pattern=call.pattern, given=Inputs(*drawn), d_output=call.d_output)


@on_all_once
@pytest.mark.parametrize(
    "shape", [(2, 2, 49, 32), (2, 3, 600, 16), (1, 1, 1, 8), (1, 2, 97, 40)], ids=str
)
def test_named_sizes(path: Path, shape: tuple[int, int, int, int]) -> None:
    batch, heads, length, dim = shape
    judged_whole(path, _uniform(Sizes(batch, heads, 1, length, length, dim, dim)))


@on_all_once
@given(
    q_len=st.sampled_from([1, 2, 17, 48, 49]),
    kv_len=st.sampled_from([1, 3, 31, 128, 129]),
    dim=st.sampled_from([8, 16, 24, 40]),
    group=st.integers(1, 3),
    seed=st.integers(0, 100),
)
def test_drawn_sizes(path: Path, q_len: int, kv_len: int, dim: int, group: int, seed: int) -> None:
    batch = max(1, 200 // (min(q_len, kv_len) * dim))
    judged_whole(path, _uniform(Sizes(batch, 1, group, q_len, kv_len, dim, dim), seed))
