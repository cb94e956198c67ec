"""Calls of linear attention, drawn at random, and the formula in a few lines of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

import headwise as hw
from headwise.nn import Features
from headwise.ops import LinearAttended
from headwise.ops.linear import chunked
from headwise.ops.linear.features import as_feature_map
from tests.support.budget import largest_error

FORMS = ("chunked", "recurrent", "reference")
# The compiled one, too, for calls that are not float64.
EVERY_FORM = ("native", *FORMS)
LENGTHS = (0, 1, 2, 4, 5, 8, 13)
CHUNKS = (1, 3, 4, chunked.CHUNK)
EXACT = 1e-10


class WithGain:
    """Positive features whose size is in the gain of keys, far beyond what a number can hold."""

    def __init__(self, size: float = 300.0) -> None:
        self.size = size

    def features(self, x: Tensor, *, is_query: bool, normalize: bool) -> Features:
        assert normalize
        top = x.detach().amax(-1)
        gain = self.size * x.detach().sum(-1)
        return Features((x - top.unsqueeze(-1)).exp(), None if is_query else gain)


def module(head_dim: int) -> nn.Module:
    """Return a map with parameters."""
    source = torch.Generator().manual_seed(3)
    made = nn.Sequential(nn.Linear(head_dim, 4), nn.Softplus()).double()
    with torch.no_grad():
        for weight in made.parameters():
            weight.copy_(torch.randn(weight.shape, generator=source, dtype=torch.float64))
    return made


@contextmanager
def chunks_of(rows: int) -> Iterator[None]:
    """Cut to chunks of so many rows while the block runs, so that short calls have many."""
    before = chunked.CHUNK
    chunked.CHUNK = rows
    try:
        yield
    finally:
        chunked.CHUNK = before


class LinearCase(NamedTuple):
    """Tensors in float64 that want gradients, and arguments of ``linear_attend``."""

    query: Tensor
    key: Tensor
    value: Tensor
    keywords: dict[str, Any]
    leaves: tuple[Tensor, ...]
    chunk: int

    def attended(self, backend: str) -> LinearAttended:
        with chunks_of(self.chunk):
            return hw.linear_attend(
                self.query, self.key, self.value, backend=backend, **self.keywords
            )


@st.composite
def linear_cases(
    draw: st.DrawFn,
    *,
    causal: bool | None = None,
    equal: bool = False,
    state: bool | None = None,
) -> LinearCase:
    """Draw a call: sizes, map, padding, decay and state."""
    source = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    batch, kv_heads, group = (draw(st.integers(1, 2)) for _ in range(3))
    kv_len = draw(st.sampled_from(LENGTHS))
    q_len = kv_len if equal else draw(st.sampled_from(LENGTHS))
    head_dim, value_dim = 3, draw(st.sampled_from((1, 5)))
    hidden = draw(st.booleans()) if causal is None else causal
    name = draw(st.sampled_from(["elu", "softmax", "gain", "module", "identity"]))
    maps: dict[str, Any] = {"gain": WithGain(), "module": module(head_dim)}
    keywords: dict[str, Any] = {
        "feature_map": maps.get(name, name),
        "causal": hidden,
        "normalize": name != "identity",
    }

    def made(*shape: int) -> Tensor:
        return torch.randn(shape, generator=source, dtype=torch.float64).requires_grad_()

    query = made(batch, kv_heads * group, q_len, head_dim)
    key, value = (made(batch, kv_heads, kv_len, width) for width in (head_dim, value_dim))
    leaves = [query, key, value]
    if draw(st.booleans()):
        keywords["kv_mask"] = torch.rand(batch, kv_len, generator=source) > 0.4
    if hidden and draw(st.booleans()):
        decay = 0.6 + 0.4 * torch.rand(kv_heads, generator=source, dtype=torch.float64)
        keywords["decay"] = decay.requires_grad_()
        leaves.append(decay)
    if draw(st.booleans()) if state is None else state:
        width = 4 if name == "module" else head_dim
        sums, normaliser, scale = (
            made(batch, kv_heads, width, value_dim),
            torch.rand(batch, kv_heads, width, generator=source, dtype=torch.float64),
            100 * made(batch, kv_heads).detach()
            if name == "gain"
            else torch.zeros(batch, kv_heads, dtype=torch.float64),
        )
        keywords["state"] = hw.LinearState(sums, normaliser.requires_grad_(), scale)
        leaves += [sums, normaliser]
    if isinstance(maps.get(name), nn.Module):
        leaves += list(maps[name].parameters())
    return LinearCase(query, key, value, keywords, tuple(leaves), draw(st.sampled_from(CHUNKS)))


def features(name: str, x: Tensor) -> Tensor:
    """Return the features of a named map."""
    return as_feature_map(name, "test").features(x, is_query=False, normalize=True).values


def spelled(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    visible: Tensor | None = None,
    decay: float = 1.0,
    normalize: bool = True,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Return linear attention over given features of as many queries as keys, step by step."""
    group = query.shape[1] // key.shape[1]
    query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    places = torch.arange(query.shape[2])
    gap = (places.unsqueeze(-1) - places).clamp(min=0)
    weights = torch.matmul(query, key.mT) * torch.tensor(decay, dtype=dtype) ** gap
    weights = weights if visible is None else weights * visible
    if normalize:
        total = weights.sum(-1, keepdim=True)
        weights = weights / total.masked_fill(total == 0, 1)
    return torch.matmul(weights, value)


def parts(found: LinearAttended) -> tuple[Tensor, ...]:
    """Return what is differentiable of a result: output, and the state at its own scale."""
    return found.output, found.state.sums, found.state.normaliser


def gradients(case: LinearCase, found: LinearAttended) -> tuple[Tensor, ...]:
    """Return the gradients of all leaves for weights that are the same in every form."""
    source = torch.Generator().manual_seed(11)
    total = case.query.new_zeros(())
    for part in parts(found):
        total = (
            total + (part * torch.randn(part.shape, generator=source, dtype=torch.float64)).sum()
        )
    got = torch.autograd.grad(total, case.leaves, allow_unused=True)
    return tuple(
        torch.zeros_like(leaf) if gradient is None else gradient
        for leaf, gradient in zip(case.leaves, got, strict=True)
    )


def assert_near(actual: Tensor, wanted: Tensor, label: str = "") -> None:
    """Demand that float64 results differ by rounding alone."""
    finite = wanted.detach()[wanted.detach().isfinite()].abs()
    size = max(1.0, finite.max().item() if finite.numel() else 0.0)
    found = largest_error(actual, wanted)
    assert found <= EXACT * size, f"{label}: {found:.3e} for numbers up to {size:.3e}"
