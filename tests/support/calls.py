"""Generator of whole attention calls: sizes, memory layouts, patterns, biases, scales, offsets."""

from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from headwise.patterns import Pattern
from tests.support.oracle import Answer, attention, unlucky
from tests.support.settings import Setting
from tests.support.shapes import Inputs, Sizes, inputs
from tests.support.strategies import patterns

LAYOUTS = ("plain", "heads inside", "sliced", "padded rows", "expanded", "innermost last")


@dataclass(frozen=True, repr=False)
class Call:
    """The arguments of one ``attend`` and what the oracle needs."""

    given: Inputs
    setting: Setting
    pattern: Pattern | None
    bias: Tensor | None
    scale: float | None

    @property
    def keywords(self) -> dict[str, Any]:
        """The keyword arguments of ``attend``."""
        return {"bias": self.bias, "scale": self.scale, **self.setting.offsets}

    def __repr__(self) -> str:
        shapes = ", ".join(f"{tuple(t.shape)} with strides {t.stride()}" for t in self.given)
        bias = None if self.bias is None else tuple(self.bias.shape)
        return (
            f"Call({shapes}, {self.setting}, {repr(self.pattern)[:200]}, "
            f"bias {bias}, scale {self.scale})"
        )

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    def visible(self) -> Tensor | None:
        """Spell the pattern out; ``None`` where there is none."""
        if self.pattern is None:
            return None
        q_len, kv_len = self.setting.q_len, self.setting.kv_len
        return self.pattern.dense(q_len, kv_len, **self.setting.offsets)

    def answer(self, dtype: torch.dtype = torch.float64) -> Answer:
        """Compute the call with the oracle in ``dtype``."""
        return attention(*self.given, self.visible(), bias=self.bias, scale=self.scale, dtype=dtype)

    def plain(self, exact: Answer, dtype: torch.dtype = torch.float32) -> Answer:
        """Compute the call with the plain spelling in ``dtype``, in its unluckier order."""
        return unlucky(
            *self.given, self.visible(), exact=exact, bias=self.bias, scale=self.scale, dtype=dtype
        )


def laid_out(tensor: Tensor, layout: str) -> Tensor:
    """Return equal numbers with other strides; ``expanded`` repeats the first sample."""
    batch, heads, length, dim = tensor.shape
    match layout:
        case "heads inside":
            return tensor.transpose(1, 2).contiguous().transpose(1, 2)
        case "sliced":
            roomy = torch.full(
                (batch, heads, 2 * length + 3, dim), float("nan"), dtype=tensor.dtype
            )
            roomy[:, :, 1 : 2 * length : 2] = tensor
            return roomy[:, :, 1 : 2 * length : 2]
        case "padded rows":
            roomy = torch.full((batch, heads, length, dim + 5), float("nan"), dtype=tensor.dtype)
            roomy[..., 3 : dim + 3] = tensor
            return roomy[..., 3 : dim + 3]
        case "expanded":
            return tensor[:1].expand(batch, -1, -1, -1)
        case "innermost last":
            return tensor.mT.contiguous().mT
    return tensor.contiguous()


@st.composite
def calls(
    draw: st.DrawFn,
    dtype: torch.dtype = torch.float32,
    q_lens: tuple[int, ...] = (1, 2, 5, 17, 47, 48, 49, 97),
    kv_lens: tuple[int, ...] = (1, 3, 31, 127, 128, 129, 257),
    small: bool = False,
) -> Call:
    """Draw a call; ``small`` keeps lengths below ten for gradients."""
    lengths = st.integers(1, 7)
    s = Sizes(
        draw(st.integers(1, 3)),
        draw(st.integers(1, 2)),
        draw(st.sampled_from([1, 1, 2, 3])),
        draw(lengths if small else st.sampled_from(q_lens)),
        draw(lengths if small else st.sampled_from(kv_lens)),
        draw(st.sampled_from([1, 3, 8, 16] if small else [1, 3, 8, 16, 19, 32, 64, 67])),
        draw(st.sampled_from([1, 5, 8] if small else [1, 5, 8, 16, 23, 64, 65])),
    )
    each = st.integers(0, 40)
    many = st.tuples(*[each] * s.batch)
    setting = Setting(
        s.batch, s.heads, s.q_len, s.kv_len, draw(st.none() | each | many), draw(st.just(0) | many)
    )
    seed = draw(st.integers(0, 10_000))
    made = inputs(s, seed=seed, dtype=dtype)
    given = Inputs(*(laid_out(tensor, draw(st.sampled_from(LAYOUTS))) for tensor in made))
    shape = (s.batch, s.heads, s.q_len, s.kv_len)
    bias = _bias(draw, shape, seed, dtype) if draw(st.booleans()) else None
    scale = draw(st.sampled_from([None, None, None, 0.0, -0.5, 1.0, 3.0]))
    return Call(given, setting, draw(st.none() | patterns(setting)), bias, scale)


def _bias(draw: st.DrawFn, shape: tuple[int, ...], seed: int, dtype: torch.dtype) -> Tensor:
    kept = draw(st.tuples(*[st.booleans()] * 4))
    rank = draw(st.sampled_from([4, 4, 2, 1, 0]))
    own = tuple(size if keep else 1 for size, keep in zip(shape, kept, strict=True))
    source = torch.Generator().manual_seed(seed)
    bias = torch.randn(own[4 - rank :], generator=source, dtype=torch.float64).to(dtype)
    if draw(st.booleans()):
        closed = torch.rand(bias.shape, generator=source) < 0.3
        bias = bias.masked_fill(closed, float("-inf"))
    return bias
