"""Output, log-sum-exp and every gradient of whole drawn calls, on every instruction set."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.budget import assert_same_bits
from tests.support.paths import ISAS, Path
from tests.support.whole_calls import WholeCall, assert_derived
from tests.support.whole_draws import FAR_EDGES, sparing, whole_calls

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
on_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def assert_right(call: WholeCall) -> None:
    """Judge all instruction sets; two threads must give the bits of one."""
    exact = call.spelled(torch.float64)
    plain = call.plain(exact)
    for isa in ISAS:
        with Path("native", isa, 2).taken() as backend:
            found = call.run(backend)
        with Path("native", isa, 1).taken() as backend:
            alone = call.run(backend)
        for name, one, two in zip(found._fields, alone, found, strict=True):
            if one is not None:
                assert two is not None
                assert_same_bits(two, one, f"{isa} {name} with 2 threads")
        assert_derived(found, exact=exact, plain=plain, label=isa)


@on_dtypes
@sparing
@given(data=st.data())
def test_drawn(dtype: torch.dtype, data: st.DataObject) -> None:
    assert_right(data.draw(whole_calls(dtype)))


@pytest.mark.slow
@on_dtypes
@sparing
@given(data=st.data())
def test_drawn_around_far_edges(dtype: torch.dtype, data: st.DataObject) -> None:
    assert_right(data.draw(whole_calls(dtype, FAR_EDGES)))
