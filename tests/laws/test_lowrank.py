"""Laws of low-rank attention: definition and fast path, padding, heads, samples, empty sizes."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from torch import Tensor

import headwise as hw
from tests.support.budget import assert_same_bits, assert_within_budget, largest_error
from tests.support.lowrank import Derived, LowRankProblem, assert_derived, problem, problems
from tests.support.shapes import Inputs, Sizes

BACKENDS = ("auto", "reference")
on_both = pytest.mark.parametrize("backend", BACKENDS)
SIZES = Sizes(3, 2, 2, 17, 29, 8, 5)


def padded() -> LowRankProblem:
    """Return a problem with padding behind, in front, and everywhere."""
    real = torch.arange(29) < torch.tensor([[11], [29], [0]])
    real[1, :9] = False
    return problem(SIZES, 7, 31, real=real)


@on_both
@given(drawn=problems())
def test_every_call_is_what_it_is_step_by_step(backend: str, drawn: LowRankProblem) -> None:
    exact = drawn.spelled(torch.float64)
    found = drawn.run(backend)
    assert found.output.dtype == torch.float32
    assert_derived(found, exact=exact, plain=drawn.spelled(torch.float32), label=backend)
    wide = drawn.to(torch.float64).run(backend)
    for name, one, wanted in zip(wide._fields, wide, exact, strict=True):
        assert largest_error(one, wanted) < 1e-10, name


@on_both
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_narrow_dtypes(backend: str, dtype: torch.dtype) -> None:
    narrow = padded().to(dtype)
    found, exact = narrow.run(backend), narrow.spelled(torch.float64)
    assert found.output.dtype == dtype
    assert_derived(found, exact=exact, plain=narrow.spelled(dtype), label=f"{backend} {dtype}")


@pytest.mark.parametrize("way", ["packed", "torch"])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("batch", [1, 3])
def test_sizes_that_go_through_faster_products(way: str, shared: bool, batch: int) -> None:
    """Without gradients and with more than a million multiplications; more columns than keys."""
    large = problem(Sizes(batch, 2, 2, 31, 509, 32, 64), 97, 521)
    if shared:
        large = replace(large, key_projection=large.key_projection[0])
    exact, plain = large.spelled(torch.float64).output, large.spelled(torch.float32).output
    with torch.no_grad(), hw.nn.projections(way):
        found = hw.lowrank_attend(*large.tensors)
    assert_within_budget(found, exact=exact, plain=plain, label=way)


@on_both
@pytest.mark.parametrize("odd", [float("nan"), float("inf"), 1e30])
def test_what_stands_at_padding_changes_nothing(backend: str, odd: float) -> None:
    usual = padded()
    assert usual.real is not None
    hidden = ~usual.real[:, None, :, None]
    query, key, value = usual.given
    spoiled = Inputs(query, key.masked_fill(hidden, odd), value.masked_fill(hidden, odd))
    wanted, found = usual.run(backend), replace(usual, given=spoiled).run(backend)
    for name, one, two in zip(found._fields, found, wanted, strict=True):
        assert_same_bits(one, two, name)
    assert bool((found.d_key.masked_select(hidden) == 0).all())
    assert bool((found.d_value.masked_select(hidden) == 0).all())


@on_both
def test_a_sample_of_padding_alone_gives_zeros_and_no_gradient(backend: str) -> None:
    found = padded().run(backend)
    for one in (found.output, found.d_query, found.d_key, found.d_value):
        assert bool((one[2] == 0).all())
    alone = cut(padded(), slice(2, 3)).run(backend)
    assert bool((alone.d_key_projection == 0).all())
    assert bool((alone.d_value_projection == 0).all())


def cut(whole: LowRankProblem, samples: slice, length: int | None = None) -> LowRankProblem:
    """Return some samples, with the first keys alone."""
    query, key, value = whole.given
    given = Inputs(query[samples], key[samples, :, :length], value[samples, :, :length])
    real = None if whole.real is None else whole.real[samples, :length]
    return replace(whole, given=given, real=real, d_output=whole.d_output[samples])


def test_padding_at_the_end_is_no_padding() -> None:
    whole = padded()
    alone = replace(cut(whole, slice(0, 1), 11), real=None)
    exact = alone.spelled(torch.float64).output
    assert_within_budget(
        whole.run().output[:1],
        exact=exact,
        plain=alone.spelled(torch.float32).output,
        label="padded at the end",
    )


def test_samples_do_not_know_each_other() -> None:
    whole = padded().to(torch.float64)
    found = whole.run()
    for sample in range(3):
        part = slice(sample, sample + 1)
        alone = cut(whole, part).run()
        for one, other in zip(alone[:4], found[:4], strict=True):
            assert largest_error(one, other[part]) < 1e-13


def test_grouped_heads_are_repeated_heads() -> None:
    grouped = padded().to(torch.float64)
    query, key, value = grouped.given
    each = replace(
        grouped,
        given=Inputs(query, key.repeat_interleave(2, 1), value.repeat_interleave(2, 1)),
        key_projection=grouped.key_projection.repeat_interleave(2, 0),
        value_projection=grouped.value_projection.repeat_interleave(2, 0),
    )
    assert largest_error(grouped.run().output, each.run().output) < 1e-13


def test_a_projection_that_changes_nothing_leaves_exact_attention() -> None:
    query, key, value = padded().given
    identity = torch.eye(29)
    found = hw.lowrank_attend(query, key, value, identity, identity)
    assert_same_bits(found, hw.attend(query, key, value))


@on_both
@pytest.mark.parametrize("lead", [(), (3,), (3, 2)], ids=str)
def test_leading_dimensions(backend: str, lead: tuple[int, ...]) -> None:
    query, key, value = (torch.randn(*lead, heads, 9, 4) for heads in (4, 2, 2))
    projection, real = torch.randn(2, 5, 9), torch.rand(*lead, 9) < 0.7
    found = hw.lowrank_attend(
        query, key, value, projection, projection, kv_mask=real, backend=backend
    )
    q, k, v = (t.reshape(-1, *t.shape[-3:]) for t in (query, key, value))
    flat = hw.lowrank_attend(
        q, k, v, projection, projection, kv_mask=real.reshape(-1, 9), backend=backend
    )
    assert_same_bits(found, flat.reshape(found.shape))


EMPTY = {
    "samples": Sizes(0, 2, 2, 3, 5, 4, 6),
    "heads": Sizes(2, 0, 1, 3, 5, 4, 6),
    "queries": Sizes(2, 2, 2, 0, 5, 4, 6),
    "keys": Sizes(2, 2, 2, 3, 0, 4, 6),
    "head_dim": Sizes(2, 2, 2, 3, 5, 0, 6),
    "value_dim": Sizes(2, 2, 2, 3, 5, 4, 0),
}


@on_both
@pytest.mark.parametrize("sizes", EMPTY.values(), ids=EMPTY)
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_empty_sizes(backend: str, sizes: Sizes, masked: bool, shared: bool) -> None:
    made = problem(sizes, 3, 5)
    if masked:
        made = replace(made, real=torch.ones(sizes.batch, sizes.kv_len, dtype=torch.bool))
    if shared:
        made = replace(made, key_projection=torch.randn(3, 5), value_projection=torch.randn(3, 5))
    found = made.run(backend)
    assert found.output.shape == (sizes.batch, sizes.heads, sizes.q_len, sizes.value_dim)
    assert all(
        shape_of(one) == tuple(t.shape) for one, t in zip(found[1:], made.tensors, strict=True)
    )
    if sizes.kv_len == 0:
        assert bool((found.output == 0).all())


@on_both
def test_a_rank_of_zero_leaves_nothing(backend: str) -> None:
    found = problem(SIZES, 0, 31).run(backend)
    assert isinstance(found, Derived)
    assert bool((found.output == 0).all())


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)


def test_derivatives_of_the_definition() -> None:
    small = problem(Sizes(2, 2, 2, 3, 5, 3, 2), 2, 6).to(torch.float64)
    real = torch.tensor([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1]])

    def asked(*tensors: Tensor) -> Tensor:
        return hw.lowrank_attend(*tensors, kv_mask=real)

    free = [t.clone().requires_grad_() for t in small.tensors]
    assert torch.autograd.gradcheck(asked, free)


def test_samples_one_by_one_through_vmap() -> None:
    query, key, value = padded().given
    projection = torch.randn(2, 7, 31)

    def one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return hw.lowrank_attend(q, k, v, projection, projection)

    torch.testing.assert_close(torch.vmap(one)(query, key, value), one(query, key, value))
