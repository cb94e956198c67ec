"""B54, B56, B58, B60 backwards: strides, sizes of zero, many heads, expanded views."""

from dataclasses import replace

import pytest
import torch

import headwise as hw
from tests.support.calls import LAYOUTS, laid_out
from tests.support.paths import Path, on_all_once, on_exact_once
from tests.support.shapes import Inputs, Sizes
from tests.support.whole_calls import judged_whole, simple


@on_all_once
@pytest.mark.parametrize("layout", LAYOUTS)
def test_b54_b60_layouts_of_inputs_and_of_the_gradient_that_comes_in(
    path: Path, layout: str
) -> None:
    for q_len in (7, 50):
        call = simple(Sizes(2, 2, 2, q_len, 129, 24, 24), pattern=hw.Causal())
        given = Inputs(*(laid_out(tensor, layout) for tensor in call.given))
        changed = replace(call, given=given, d_output=laid_out(call.d_output, layout))
        judged_whole(path, changed, layout)


@on_all_once
@pytest.mark.parametrize("length", [1, 31, 32, 33, 65, 97, 129])
def test_b60_keys_and_values_of_stride_zero(path: Path, length: int) -> None:
    call = simple(Sizes(2, 4, 1, 7, length, 32, 32))
    _, key, value = call.given
    given = Inputs(
        call.given.query,
        key[:1, :1].expand_as(key),
        value[:1, :1, :1].expand_as(value),
    )
    mask = torch.rand(2, 1, 7, length) < 0.7
    judged_whole(
        path, simple(Sizes(2, 4, 1, 7, length, 32, 32), given=given, pattern=hw.Dense(mask))
    )


@on_exact_once
@pytest.mark.parametrize("shape", [(1, 65536), (65537, 1)], ids=str)
def test_b58_many_heads_or_samples(path: Path, shape: tuple[int, int]) -> None:
    call = simple(Sizes(*shape, 1, 2, 2, 8, 8), pattern=hw.Causal())
    with path.taken() as backend:
        found = call.run(backend)
    axis = 1 if shape[0] == 1 else 0
    for start in (0, max(shape) - 3):
        part = Inputs(*(t.narrow(axis, start, 3) for t in call.given))
        sizes = Sizes(*((1, 3) if axis else (3, 1)), 1, 2, 2, 8, 8)
        few = simple(
            sizes, pattern=hw.Causal(), given=part, d_output=call.d_output.narrow(axis, start, 3)
        )
        wanted = judged_whole(path, few)
        for name in ("output", "d_query", "d_key", "d_value"):
            whole = getattr(found, name).narrow(axis, start, 3)
            torch.testing.assert_close(whole, getattr(wanted, name))


@on_exact_once
@pytest.mark.parametrize(
    "sizes",
    [
        Sizes(q_len=0),
        Sizes(kv_len=0),
        Sizes(batch=0),
        Sizes(kv_heads=0),
        Sizes(head_dim=0),
        Sizes(value_dim=0),
        Sizes(group=2, kv_len=0),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_b56_sizes_of_zero(path: Path, sizes: Sizes, dtype: torch.dtype) -> None:
    bias, sinks = torch.randn(1, sizes.heads, 1, sizes.kv_len), torch.randn(sizes.heads)
    call = simple(sizes, dtype=dtype, pattern=hw.Causal(), bias=bias, sinks=sinks)
    with path.taken() as backend:
        found = call.run(backend)
    for gradient, tensor in zip(found[2:], (*call.given, bias, sinks), strict=True):
        assert gradient is not None
        assert gradient.shape == tensor.shape
        assert gradient.isfinite().all()
        if sizes.kv_len == 0:
            assert (gradient == 0).all()
