"""Low-rank attention in a few lines of its own, and generators of its calls."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

import headwise as hw
from tests.support.budget import assert_within_budget
from tests.support.calls import LAYOUTS, laid_out
from tests.support.oracle import attention
from tests.support.shapes import Inputs, Sizes, inputs


class Derived(NamedTuple):
    """The output of a call, and the gradients of its five tensors."""

    output: Tensor
    d_query: Tensor
    d_key: Tensor
    d_value: Tensor
    d_key_projection: Tensor
    d_value_projection: Tensor


@dataclass(frozen=True, repr=False)
class LowRankProblem:
    """The arguments of one ``lowrank_attend``, and the gradient of its output."""

    given: Inputs
    key_projection: Tensor
    value_projection: Tensor
    real: Tensor | None
    scale: float | None
    d_output: Tensor

    def __repr__(self) -> str:
        shapes = ", ".join(f"{tuple(t.shape)}" for t in self.tensors)
        padded = None if self.real is None else self.real.int().tolist()
        return f"LowRankProblem({shapes}, {self.given.query.dtype}, real {padded}, {self.scale})"

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The five tensors that may want a gradient."""
        return (*self.given, self.key_projection, self.value_projection)

    def run(self, backend: str = "auto") -> Derived:
        """Compute output and gradients."""
        free = [t.detach().clone().requires_grad_() for t in self.tensors]
        output = hw.lowrank_attend(*free, kv_mask=self.real, scale=self.scale, backend=backend)
        return Derived(output.detach(), *torch.autograd.grad(output, free, self.d_output))

    def spelled(self, dtype: torch.dtype) -> Derived:
        """Compute them step by step in ``dtype``; only four dimensions."""
        free = [t.detach().to(dtype).requires_grad_() for t in self.tensors]
        query, key, value, for_keys, for_values = free
        length = key.shape[2]
        if self.real is not None:
            hidden = ~self.real[:, None, :, None]
            key, value = key.masked_fill(hidden, 0.0), value.masked_fill(hidden, 0.0)
        keys = torch.matmul(for_keys[..., :length], key)
        values = torch.matmul(for_values[..., :length], value)
        output = attention(query, keys, values, scale=self.scale, dtype=dtype).output
        d_output = self.d_output.to(dtype)
        return Derived(output.detach(), *torch.autograd.grad(output, free, d_output))

    def to(self, dtype: torch.dtype) -> "LowRankProblem":
        """Return the same problem with its numbers rounded to ``dtype``."""
        return replace(
            self,
            given=Inputs(*(t.to(dtype) for t in self.given)),
            key_projection=self.key_projection.to(dtype),
            value_projection=self.value_projection.to(dtype),
            d_output=self.d_output.to(dtype),
        )


def problem(sizes: Sizes, rank: int, columns: int, **kept: Any) -> LowRankProblem:
    """Return a problem in float32 with a projection for each head; ``kept`` replaces its fields."""
    given = inputs(sizes, seed=1)
    source = torch.Generator().manual_seed(2)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=source)

    spread = max(columns, 1) ** -0.5
    made = LowRankProblem(
        given,
        drawn(sizes.kv_heads, rank, columns) * spread,
        drawn(sizes.kv_heads, rank, columns) * spread,
        None,
        None,
        drawn(sizes.batch, sizes.heads, sizes.q_len, sizes.value_dim),
    )
    return replace(made, **kept)


@st.composite
def problems(draw: st.DrawFn) -> LowRankProblem:
    """Draw sizes, layouts, padding on any side, and who shares the projections."""
    sizes = Sizes(
        draw(st.integers(1, 3)),
        draw(st.integers(1, 3)),
        draw(st.sampled_from([1, 1, 2, 3])),
        draw(st.sampled_from([1, 2, 7, 47, 97])),
        draw(st.sampled_from([1, 3, 13, 67, 131])),
        draw(st.sampled_from([1, 8, 19, 64])),
        draw(st.sampled_from([1, 5, 64, 67])),
    )
    rank, spare = draw(st.sampled_from([1, 2, 11, 53])), draw(st.sampled_from([0, 0, 5]))
    made = problem(
        sizes, rank, sizes.kv_len + spare, scale=draw(st.sampled_from([None, 0.5, -1.0]))
    )
    if draw(st.booleans()):
        seed = draw(st.integers(0, 1000))
        kept = torch.rand(sizes.batch, sizes.kv_len, generator=torch.Generator().manual_seed(seed))
        made = replace(made, real=kept < draw(st.sampled_from([0.0, 0.6, 1.0])))
    if draw(st.booleans()):
        made = replace(made, key_projection=made.key_projection[0])
    if draw(st.booleans()):
        made = replace(made, value_projection=made.value_projection[0])
    given = Inputs(*(laid_out(t, draw(st.sampled_from(LAYOUTS))) for t in made.given))
    return replace(made, given=given)


def assert_derived(found: Derived, *, exact: Derived, plain: Derived, label: str) -> None:
    """Compare output and gradients by the budget."""
    for name, one, wanted, usual in zip(found._fields, found, exact, plain, strict=True):
        assert_within_budget(one, exact=wanted, plain=usual, label=f"{label} {name}")
