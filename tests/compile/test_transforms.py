"""vmap and torch.func.grad equal a loop, and never lose a gradient (K9 of the shared cases)."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, functionalize, grad, jacrev, jvp, vmap

import headwise as hw
from headwise import BackendRefused
from headwise.patterns import Pattern
from tests.support.budget import assert_same_bits
from tests.support.shapes import Inputs, Sizes, inputs

# torch's own modules warn when they are first used.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

COPIES = 3
SIZES = Sizes(batch=2, kv_heads=2, group=2, q_len=5, kv_len=7, head_dim=8, value_dim=6)
HEADS = SIZES.heads
PADDING = hw.KeyMask(torch.tensor([[1, 1, 1, 1, 0, 1, 0], [1, 1, 1, 1, 1, 1, 1]]) > 0)

ONE = inputs(SIZES)
MANY = Inputs(
    *(torch.stack([inputs(SIZES, seed=n)[part] for n in range(COPIES)]) for part in (0, 1, 2))
)

Program = Callable[..., Any]


def attend(*given: Any, **keywords: Any) -> Tensor:
    return hw.attend(*given, backend="native", **keywords)


def looped(program: Program, dims: tuple[int | None, ...], given: tuple[Tensor, ...]) -> Any:
    """Run the samples one by one on the reference, and stack what they give."""
    runs = [
        program(
            *(
                part if dim is None else part.select(dim, copy)
                for part, dim in zip(given, dims, strict=True)
            ),
            backend="reference",
        )
        for copy in range(COPIES)
    ]
    if isinstance(runs[0], Tensor):
        return torch.stack(runs)
    return tuple(torch.stack(parts) for parts in zip(*runs, strict=True))


def assert_like_a_loop(program: Program, dims: tuple[int | None, ...], *given: Tensor) -> None:
    found = vmap(lambda *parts: program(*parts, backend="native"), in_dims=dims)(*given)
    torch.testing.assert_close(found, looped(program, dims, given), rtol=1e-4, atol=2e-5)


def padded(query: Tensor, key: Tensor, value: Tensor, backend: str) -> Any:
    return tuple(hw.attend_with_lse(query, key, value, PADDING & hw.Causal(), backend=backend))


@pytest.mark.parametrize(
    "dims", [(0, 0, 0), (0, None, None), (None, 0, None), (None, None, 0), (0, None, 0)]
)
def test_any_tensor_may_be_mapped(dims: tuple[int | None, ...]) -> None:
    given = [one if dim is None else many for one, many, dim in zip(ONE, MANY, dims, strict=True)]
    assert_like_a_loop(padded, dims, *given)


def test_any_axis_may_be_mapped() -> None:
    assert_like_a_loop(
        padded, (3, 4, 1), MANY[0].movedim(0, 3), MANY[1].movedim(0, 4), MANY[2].movedim(0, 1)
    )


def test_samples_without_a_batch() -> None:
    """The usual form of per-sample work: three dimensions, the batch mapped."""
    given = [tensor[:, 0] for tensor in MANY]
    assert_like_a_loop(
        lambda q, k, v, backend: hw.attend(q, k, v, hw.Causal(), backend=backend),
        (0, 0, 0),
        *given,
    )


@pytest.mark.parametrize("shape", [(5, 7), (1, 7), (5, 1), (2, 1, 1, 7), (1, 4, 1, 1)])
@pytest.mark.parametrize("dim", [None, 0])
def test_biases(shape: tuple[int, ...], dim: int | None) -> None:
    bias = torch.randn(shape if dim is None else (COPIES, *shape))
    bias[..., 0] = float("-inf")

    def program(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, backend: str) -> Any:
        def loss(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
            return hw.attend(q, k, v, PADDING, bias=bias, backend=backend).square().sum()

        return grad(loss, argnums=(0, 1, 2, 3))(q, k, v, bias)

    assert_like_a_loop(program, (0, 0, 0, dim), *MANY, bias)


@pytest.mark.parametrize("dim", [None, 0])
def test_sinks(dim: int | None) -> None:
    sinks = torch.randn((HEADS,) if dim is None else (COPIES, HEADS))

    def program(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, backend: str) -> Any:
        def loss(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
            return hw.attend(q, k, v, PADDING, sinks=sinks, backend=backend).square().sum()

        return grad(loss, argnums=(0, 3))(q, k, v, sinks)

    assert_like_a_loop(program, (0, 0, 0, dim), *MANY, sinks)


def test_biases_by_distance() -> None:
    relative = hw.positions.RelativeBias(HEADS, 8, 16)
    weights = torch.randn(COPIES, *relative.weight.shape)

    def program(q: Tensor, k: Tensor, v: Tensor, weight: Tensor, backend: str) -> Any:
        class Biased(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.bias = relative

            def forward(self) -> Tensor:
                return hw.attend(q, k, v, bias=self.bias, backend=backend).square().sum()

        return grad(lambda w: functional_call(Biased(), {"bias.weight": w}, ()))(weight)

    assert_like_a_loop(program, (0, 0, 0, 0), *MANY, weights)
    assert_like_a_loop(program, (0, 0, 0, None), *MANY, weights[0])
    alibi = hw.positions.Alibi(HEADS)
    assert_like_a_loop(
        lambda q, k, v, backend: hw.attend(q, k, v, bias=alibi, backend=backend), (0, 0, 0), *MANY
    )


FLAGS = torch.rand(COPIES, 2, 7, generator=torch.Generator().manual_seed(1)) < 0.6
MAPPED: dict[str, tuple[Callable[[Tensor], Pattern], Tensor]] = {
    "key mask": (lambda m: hw.KeyMask(m) & hw.Causal(), FLAGS),
    "key mask for all": (lambda m: hw.KeyMask(m) & PADDING, FLAGS[:, 0]),
    "key mask of one": (hw.KeyMask, FLAGS[:, :1]),
    "dense": (
        lambda m: hw.Dense(m[:, None]) | hw.Causal(),
        FLAGS[:, :, None].expand(-1, -1, 5, -1),
    ),
    "dense for all": (lambda m: hw.Dense(m) & PADDING, FLAGS[:, :1].expand(-1, 5, -1)),
    "lengths": (hw.Lengths, torch.tensor([[1, 2], [3, 4], [5, 7]])),
    "one length": (hw.Lengths, torch.tensor([1, 4, 7])),
    "documents": (hw.Documents, FLAGS.long()),
    "documents for all": (lambda n: hw.Documents(n) & PADDING, FLAGS[:, 1].long()),
}


@pytest.mark.parametrize("name", MAPPED)
def test_patterns_of_mapped_tensors(name: str) -> None:
    build, numbers = MAPPED[name]
    assert_like_a_loop(
        lambda q, k, v, numbers, backend: hw.attend(q, k, v, build(numbers), backend=backend),
        (0, 0, 0, 0),
        *MANY,
        numbers,
    )


def test_places_of_samples() -> None:
    assert_like_a_loop(
        lambda q, k, v, backend: hw.attend(
            q, k, v, hw.Causal() & PADDING, q_offset=torch.tensor([1, 4]), backend=backend
        ),
        (0, 0, 0),
        *MANY,
    )


def test_a_map_inside_a_map() -> None:
    query = torch.stack([MANY.query, MANY.query.flip(0)])

    def program(q: Tensor, k: Tensor, backend: str) -> Tensor:
        return hw.attend(q, k, ONE.value, PADDING, backend=backend)

    found = vmap(vmap(lambda q, k: program(q, k, "native"), (0, None)))(query, MANY.key[:2])
    wanted = torch.stack(
        [
            torch.stack([program(q, k, "reference") for q in some])
            for some, k in zip(query, MANY.key[:2], strict=True)
        ]
    )
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=2e-5)


def test_gradients_outside_a_map() -> None:
    def loss(query: Tensor, backend: str) -> Tensor:
        return (
            vmap(lambda q: hw.attend(q, *ONE[1:], PADDING, backend=backend))(query).square().sum()
        )

    wanted = grad(loss)(MANY.query, "reference")
    torch.testing.assert_close(grad(loss)(MANY.query, "native"), wanted, rtol=1e-4, atol=2e-5)
    query = MANY.query.clone().requires_grad_()
    torch.autograd.backward(loss(query, "native"))
    torch.testing.assert_close(query.grad, wanted, rtol=1e-4, atol=2e-5)


def test_a_map_of_one_sample_computes_the_same_bits() -> None:
    found = vmap(lambda q, k, v: attend(q, k, v, hw.Causal()))(*MANY)
    for copy, output in enumerate(found):
        assert_same_bits(output, attend(*(part[copy] for part in MANY), hw.Causal()))


def dropped(query: Tensor) -> Tensor:
    return attend(query, *ONE[1:], dropout_p=0.5)


def test_dropout_under_a_map_must_be_told_how() -> None:
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(dropped)(MANY.query)


@pytest.mark.parametrize("program", [dropped, grad(lambda q: dropped(q).square().sum())])
def test_dropout_under_a_map(program: Program) -> None:
    query = ONE.query.expand(COPIES, *ONE.query.shape)
    different = vmap(program, randomness="different")(query)
    assert not torch.equal(different[0], different[1])
    torch.manual_seed(5)
    same = vmap(program, randomness="same")(query)
    assert_same_bits(same[1], same[0])
    torch.manual_seed(5)
    torch.testing.assert_close(same[0], program(ONE.query))


def test_what_is_not_derived_is_refused() -> None:
    with pytest.raises(BackendRefused, match="no forward-mode derivative"):
        jvp(lambda q: attend(q, *ONE[1:]), (ONE.query,), (ONE.query,))
    with pytest.raises(BackendRefused, match="no second derivatives"):
        grad(lambda q: grad(lambda q: attend(q, *ONE[1:]).square().sum())(q).sum())(ONE.query)


def test_forward_mode_is_left_to_the_reference() -> None:
    def program(query: Tensor) -> Tensor:
        return hw.attend(query, *ONE[1:], hw.Causal())

    exact = Inputs(*(tensor.double() for tensor in ONE))
    step = 1e-6 * torch.randn_like(exact.query)
    moved = [hw.attend(exact.query + sign * step, *exact[1:], hw.Causal()) for sign in (1, -1)]
    tangent = jvp(program, (ONE.query,), (step.float(),))[1]
    torch.testing.assert_close(tangent.double(), (moved[0] - moved[1]) / 2, rtol=1e-3, atol=1e-10)


def test_jacobians() -> None:
    def rows(query: Tensor, backend: str) -> Tensor:
        return hw.attend(query, *ONE[1:], hw.Causal(), backend=backend).sum((0, 1))

    wanted = jacrev(rows)(ONE.query, "reference")
    torch.testing.assert_close(jacrev(rows)(ONE.query, "native"), wanted, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_map_over_the_backward_pass_alone(share: float) -> None:
    query = ONE.query.clone().requires_grad_()
    places = torch.tensor([1, 4])
    pattern = PADDING & hw.Causal()
    output = attend(query, *ONE[1:], pattern, q_offset=places, dropout_p=share)
    upstream = torch.randn(COPIES, *output.shape)

    def back(gradient: Tensor) -> Tensor:
        return torch.autograd.grad(output, query, gradient, retain_graph=True)[0]

    wanted = torch.stack([back(gradient) for gradient in upstream])
    torch.testing.assert_close(vmap(back)(upstream), wanted)


def test_functionalize_is_left_to_the_reference() -> None:
    found = functionalize(lambda q: hw.attend(q, *ONE[1:], hw.Causal()))(ONE.query)
    torch.testing.assert_close(found, attend(ONE.query, *ONE[1:], hw.Causal()))
    with pytest.raises(BackendRefused, match=r"torch\.func\.functionalize is active"):
        functionalize(lambda q: attend(q, *ONE[1:]))(ONE.query)


def test_a_compiler_leaves_transforms_to_the_reference() -> None:
    """It would take the operator apart from its function, and lose the gradient."""

    def per_sample(query: Tensor, backend: str = "auto") -> Tensor:
        def loss(q: Tensor) -> Tensor:
            return hw.attend(q, *ONE[1:], hw.Causal(), backend=backend).square().sum()

        found: Tensor = vmap(grad(loss))(query)
        return found

    compiled = torch.compile(per_sample, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(MANY.query), per_sample(MANY.query), rtol=1e-4, atol=2e-5)
