"""Drawn sums of linear attention, for every form that computes them."""

from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

from headwise.ops.linear.scales import causal_offset
from headwise.ops.linear.state import LinearState, Sums
from headwise.ops.linear.sums import Form


class Problem(NamedTuple):
    """Sizes of a call, and what it has."""

    batch: int
    kv_heads: int
    group: int
    q_len: int
    kv_len: int
    features: int
    value_dim: int
    dtype: torch.dtype
    causal: bool
    gains: str
    decays: bool
    has_state: bool
    seed: int


@st.composite
def problems(draw: st.DrawFn, *, longest: int = 1100) -> Problem:
    causal = draw(st.booleans())
    lengths = st.sampled_from([1, 2, 15, 17, 63, 64, 67, 131, 1031, longest])
    length = draw(lengths)
    return Problem(
        batch=draw(st.integers(1, 2)),
        kv_heads=draw(st.integers(1, 2)),
        group=draw(st.integers(1, 3)),
        q_len=length,
        kv_len=length if causal else draw(lengths),
        features=draw(st.sampled_from([1, 3, 16, 37])),
        value_dim=draw(st.sampled_from([1, 5, 16, 33])),
        dtype=draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16])),
        causal=causal,
        gains=draw(st.sampled_from(["none", "near", "far", "padded"])),
        decays=causal and draw(st.booleans()),
        has_state=draw(st.booleans()),
        seed=draw(st.integers(0, 999)),
    )


class Leaves(NamedTuple):
    """The tensors of a call."""

    query: Tensor
    key: Tensor
    value: Tensor
    log_gain: Tensor | None
    log_decay: Tensor | None
    state: LinearState | None

    def to(self, dtype: torch.dtype, number: torch.dtype) -> "Leaves":
        """Copy, queries, keys and values in ``dtype`` and all others in ``number``; all leaves."""

        def leaf(tensor: Tensor, dtype: torch.dtype) -> Tensor:
            return tensor.detach().to(dtype).clone().requires_grad_()

        decay, state = self.log_decay, self.state
        if state is not None:
            sums, normaliser = leaf(state.sums, number), leaf(state.normaliser, number)
            state = LinearState(sums, normaliser, state.log_scale.to(number))
        return Leaves(
            leaf(self.query, dtype),
            leaf(self.key, dtype),
            leaf(self.value, dtype),
            None if self.log_gain is None else self.log_gain.to(number),
            None if decay is None else leaf(decay, number),
            state,
        )

    @property
    def learned(self) -> list[Tensor]:
        """Everything that has a gradient."""
        state = () if self.state is None else self.state[:2]
        return [x for x in (*self[:3], self.log_decay, *state) if x is not None]

    def run(self, form: Form, *, causal: bool) -> Sums:
        """Compute the sums."""
        offset = None
        if causal and self.log_gain is not None:
            offset = causal_offset(self.log_gain, self.log_decay, self.state)
        return form(
            self.query,
            self.key,
            self.value,
            log_gain=self.log_gain,
            offset=offset,
            log_decay=self.log_decay,
            state=self.state,
            causal=causal,
        )


def drawn(problem: Problem) -> Leaves:
    """Draw the tensors of a call; queries lie with heads inside lengths."""
    p = problem
    torch.manual_seed(p.seed)
    heads = p.kv_heads * p.group
    query = torch.rand(p.batch, p.q_len, heads, p.features).transpose(1, 2)
    key = torch.rand(p.batch, p.kv_heads, p.kv_len, p.features)
    value = torch.randn(p.batch, p.kv_heads, p.kv_len, p.value_dim)
    gain = None
    if p.gains != "none":
        gain = torch.randn(p.batch, p.kv_heads, p.kv_len) * (20 if p.gains == "far" else 1)
    if p.gains == "padded" and gain is not None:
        hidden = torch.rand(p.batch, p.kv_len) < 0.5
        gain = gain.masked_fill(hidden[:, None], float("-inf"))
        key = key.masked_fill(hidden[:, None, :, None], 0.0)
        value = value.masked_fill(hidden[:, None, :, None], 0.0)
    decay = -torch.rand(p.kv_heads) if p.decays else None
    state = None
    if p.has_state:
        scale = torch.zeros(p.batch, p.kv_heads)
        state = LinearState(
            torch.randn(p.batch, p.kv_heads, p.features, p.value_dim),
            torch.rand(p.batch, p.kv_heads, p.features),
            scale if gain is None else torch.randn_like(scale),
        )
    dtype = p.dtype
    return Leaves(query.to(dtype), key.to(dtype), value.to(dtype), gain, decay, state)
