"""Compiled graphs compute what eager calls compute, without a break and without many builds."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

import headwise as hw
from headwise.patterns import Pattern, sliding_causal
from tests.compile.patterns_of_calls import BUILT, FIXED, SIZES, Built
from tests.support.budget import assert_same_bits
from tests.support.shapes import inputs

Program = Callable[..., Tensor]

# torch's own modules warn when the first graph is built.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

# Inductor imports a module that Python has given up, with warnings that depend on setuptools.
OLD_TOOLS = pytest.mark.filterwarnings("ignore:.*[Dd]istutils")


@pytest.fixture(autouse=True)
def _forgetful() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def derived(program: Program, *given: Any) -> list[Tensor]:
    """Run with a seed of its own; return the result and the gradients of all floating inputs."""
    given = tuple(
        part.detach().clone().requires_grad_()
        if isinstance(part, Tensor) and part.is_floating_point()
        else part
        for part in given
    )
    torch.manual_seed(7)
    result = program(*given)
    learned = [part for part in given if isinstance(part, Tensor) and part.requires_grad]
    upstream = torch.linspace(-1, 1, result.numel()).view(result.shape).to(result.dtype)
    return [result, *torch.autograd.grad(result, learned, upstream)]


def assert_alike(
    program: Program, *given: Any, backend: str = "aot_eager", **keywords: Any
) -> None:
    compiled = torch.compile(program, backend=backend, fullgraph=True, **keywords)
    for found, wanted in zip(derived(compiled, *given), derived(program, *given), strict=True):
        assert_same_bits(found, wanted)
    with torch.no_grad():
        torch.manual_seed(7)
        found = compiled(*given)
        torch.manual_seed(7)
        assert_same_bits(found, program(*given))


def native(*given: Any, **keywords: Any) -> Tensor:
    return hw.attend(*given, backend="native", **keywords)


@pytest.mark.parametrize("name", FIXED)
def test_patterns_built_outside(name: str) -> None:
    pattern: Pattern | None = FIXED[name]
    assert_alike(lambda q, k, v: native(q, k, v, pattern), *inputs(SIZES))


@pytest.mark.parametrize("name", BUILT)
def test_patterns_built_from_inputs(name: str) -> None:
    built: Built = BUILT[name]
    assert_alike(
        lambda q, k, v, numbers: native(q, k, v, built.build(numbers)),
        *inputs(SIZES),
        built.numbers,
    )


@pytest.mark.parametrize("name", BUILT)
def test_the_reference_takes_traced_patterns_too(name: str) -> None:
    given, built = inputs(SIZES, dtype=torch.float64), BUILT[name]

    def program(numbers: Tensor) -> Tensor:
        return hw.attend(*given, built.build(numbers))

    compiled = torch.compile(program, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(built.numbers), program(built.numbers))


def test_a_pattern_is_lowered_for_the_numbers_of_each_run() -> None:
    compiled = torch.compile(
        lambda x, mask: native(x, x, x, hw.KeyMask(mask)), backend="aot_eager", fullgraph=True
    )
    x = torch.randn(1, 2, 5, 8)
    for seen in ([1, 1, 0, 0, 0], [0, 0, 1, 1, 1]):
        mask = torch.tensor([seen]) > 0
        assert_same_bits(compiled(x, mask), native(x, x, x, hw.KeyMask(mask)))


def test_everything_that_is_added() -> None:
    heads = SIZES.heads
    given = inputs(SIZES)
    assert_alike(
        lambda q, k, v, bias, sinks: native(
            q, k, v, hw.Causal(), bias=bias, sinks=sinks, softcap=2.0, scale=-0.5, dropout_p=0.4
        ),
        *given,
        torch.randn(1, heads, 7, 1),
        torch.randn(heads),
    )
    for bias in (hw.positions.Alibi(heads), hw.positions.RelativeBias(heads, 8, 16)):
        assert_alike(lambda q, k, v, b=bias: native(q, k, v, bias=b), *given)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    assert_alike(lambda q, k, v: native(q, k, v, hw.Causal()), *inputs(SIZES, dtype=dtype))


def test_layouts_and_leading_dimensions() -> None:
    def layer_like(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        inside = q.transpose(1, 2).contiguous().transpose(1, 2)
        return native(inside, k, v, hw.Causal()).transpose(1, 2).flatten(2)

    given = inputs(SIZES)
    assert_alike(layer_like, *given)
    assert_alike(lambda q, k, v: native(q.mT.contiguous().mT, k, v), *given)
    assert_alike(lambda q, k, v: native(q[0], k[0], v[0]), *given)
    assert_alike(lambda q, k, v: native(q[None], k[None], v[None], sliding_causal(2)), *given)
    assert_alike(lambda x: native(x, x, x, hw.Causal()), torch.randn(2, 3, 5, 8))


def test_the_log_sum_exp_has_a_gradient() -> None:
    assert_alike(
        lambda q, k, v: hw.attend_with_lse(q, k, v, hw.Causal(), backend="native").lse,
        *inputs(SIZES),
    )


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("learning", [True, False])
def test_lengths_that_change(marked: bool, learning: bool) -> None:
    """A marked length is built once; an unmarked one once more, when it is seen to change."""
    counter = CompileCounterWithBackend("aot_eager")

    def program(x: Tensor, mask: Tensor) -> Tensor:
        return native(x, x, x, hw.KeyMask(mask) & sliding_causal(3))

    compiled = torch.compile(program, backend=counter, fullgraph=True)
    for length in (5, 7, 50, 130, 131):
        x, mask = torch.randn(2, 4, length, 8), torch.rand(2, length) < 0.7
        if marked:
            torch._dynamo.mark_dynamic(x, 2)
            torch._dynamo.mark_dynamic(mask, 1)
        if not learning:
            assert_same_bits(compiled(x, mask), program(x, mask))
            continue
        x.requires_grad_()
        pairs = zip(
            torch.autograd.grad(compiled(x, mask).square().sum(), x),
            torch.autograd.grad(program(x, mask).square().sum(), x),
            strict=True,
        )
        for found, wanted in pairs:
            torch.testing.assert_close(found, wanted)
    assert counter.frame_count == (1 if marked else 2)


def test_decoding_steps_share_a_graph() -> None:
    """Positions are numbers of the graph, not constants."""
    counter = CompileCounterWithBackend("aot_eager")

    def step(query: Tensor, keys: Tensor, position: int) -> Tensor:
        return native(query, keys, keys, hw.Causal(), q_offset=position)

    compiled = torch.compile(step, backend=counter, fullgraph=True)
    query, keys = torch.randn(1, 2, 1, 8), torch.randn(1, 2, 40, 8)
    for position in range(3, 12):
        assert_same_bits(compiled(query, keys, position), step(query, keys, position))
    assert counter.frame_count == 2


def test_patterns_with_other_numbers_share_a_graph() -> None:
    counter = CompileCounterWithBackend("aot_eager")

    def program(x: Tensor, length: int) -> Tensor:
        return native(x, x, x, hw.Prefix(length) | hw.Causal())

    compiled = torch.compile(program, backend=counter, fullgraph=True)
    x = torch.randn(1, 2, 20, 8)
    for length in range(2, 9):
        assert_same_bits(compiled(x, length), program(x, length))
    assert counter.frame_count == 2


def test_dropout_in_a_graph_draws_anew_and_follows_the_generator() -> None:
    compiled = torch.compile(
        lambda x: native(x, x, x, dropout_p=0.5), backend="aot_eager", fullgraph=True
    )
    x = torch.randn(1, 2, 9, 8)
    torch.manual_seed(1)
    first, second = compiled(x), compiled(x)
    assert not torch.equal(first, second)
    torch.manual_seed(1)
    assert_same_bits(compiled(x), first)


@OLD_TOOLS
def test_inductor() -> None:
    relative = hw.positions.RelativeBias(SIZES.heads, 8, 16)

    def program(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, sinks: Tensor) -> Tensor:
        output = native(2 * q, k, v, hw.KeyMask(mask) & hw.Causal(), bias=relative, sinks=sinks)
        return output.transpose(1, 2).flatten(2) + 1

    given = (*inputs(SIZES), BUILT["key mask"].numbers, torch.randn(SIZES.heads))
    compiled = torch.compile(program, fullgraph=True)
    for found, wanted in zip(derived(compiled, *given), derived(program, *given), strict=True):
        torch.testing.assert_close(found, wanted)


@OLD_TOOLS
def test_inductor_draws_dropout_anew() -> None:
    compiled = torch.compile(lambda x: native(x, x, x, dropout_p=0.5), fullgraph=True)
    x = torch.eye(64).expand(1, 2, 64, 64)
    found = [compiled(x) for _ in range(2)]
    assert not torch.equal(*found)
    assert 0.4 < (found[0] == 0).float().mean() < 0.6
