"""Caches of every kind, and passes to be cut into their calls, judged by the oracle."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

import headwise as hw
from headwise.patterns import Pattern
from headwise.positions import Alibi, RelativeBias
from tests.support.budget import assert_within_budget, largest_error
from tests.support.oracle import Extras, attention
from tests.support.position_rules import added
from tests.support.settings import Setting
from tests.support.shapes import Inputs, Sizes, inputs
from tests.support.strategies import position_biases

KINDS = ("growing", "fixed", "window", "kept", "paged")
STORED = (None, torch.float32, torch.bfloat16, torch.float16, torch.int8)
PAGE = 128


@dataclass(frozen=True)
class CacheKind:
    """What a cache is made of; ``capacity`` is for fixed ones, and enough for the pass."""

    name: str
    capacity: int = 64
    window: int | None = None
    keep_first: int = 0
    rollback: int = 0
    dtype: torch.dtype | None = None

    def make(self) -> hw.KVCache:
        """Make an empty one."""
        match self.name:
            case "fixed":
                return hw.KVCache(capacity=self.capacity, dtype=self.dtype)
            case "window" | "kept":
                return hw.KVCache(
                    window=self.window,
                    keep_first=self.keep_first,
                    rollback=self.rollback,
                    dtype=self.dtype,
                )
            case "paged":
                return hw.KVCache(pool=hw.PagePool(page=PAGE), dtype=self.dtype)
        return hw.KVCache(dtype=self.dtype)

    def limited(self, pattern: Pattern) -> Pattern:
        """Return the pattern that a whole pass needs to see what the cache lets it see."""
        if self.window is None:
            return pattern
        last: Pattern = hw.Window(self.window - 1, None)
        return pattern & (last | hw.Prefix(self.keep_first) if self.keep_first else last)

    def rounded(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values as they are stored; a law of its own says what that means."""
        plain = hw.KVCache(dtype=self.dtype)
        stored = plain.append(key, value)
        return stored.key, stored.value


@st.composite
def cache_kinds(
    draw: st.DrawFn, name: str, capacity: int, stored: Sequence[torch.dtype | None] = STORED
) -> CacheKind:
    """Draw a cache of one kind, with room for so many tokens."""
    dtype = draw(st.sampled_from(stored))
    if name not in ("window", "kept"):
        return CacheKind(name, max(capacity, 1), dtype=dtype)
    window = draw(st.sampled_from([1, 2, 5, 40]))
    keep_first = draw(st.integers(1, 5)) if name == "kept" else 0
    return CacheKind(name, capacity, window, keep_first, draw(st.sampled_from([0, 3, 16])), dtype)


@dataclass(frozen=True, repr=False)
class Pass:
    """Causal attention of a sequence to itself, with what else a call may have."""

    given: Inputs
    pattern: Pattern
    bias: Alibi | RelativeBias | None
    scale: float | None
    softcap: float | None
    sinks: Tensor | None

    @property
    def keywords(self) -> dict[str, Any]:
        """The keyword arguments of a call."""
        return {
            "bias": self.bias,
            "scale": self.scale,
            "softcap": self.softcap,
            "sinks": self.sinks,
        }

    def __repr__(self) -> str:
        shapes = ", ".join(str(tuple(t.shape)) for t in self.given)
        shown = [each for each in self.keywords.items() if each[1] is not None]
        return f"Pass({shapes}, {self.given.query.dtype}, {self.pattern}, {shown})"

    def judge(self, found: Tensor, given: Inputs, kind: CacheKind) -> None:
        """Compare the output for one sample, (heads, q_len, dim), with the oracle's.

        Args:
            found: What came out.
            given: Its last queries, and all its keys and values as the cache stores them, without
                a batch.
            kind: Of the cache.
        """
        q_len, kv_len = found.shape[1], given.key.shape[1]
        visible = kind.limited(self.pattern).dense(q_len, kv_len)
        setting = Setting(1, found.shape[0], q_len, kv_len)

        def spell(dtype: torch.dtype, turned: bool = False) -> Tensor:
            bias = None
            if self.bias is not None:
                own = self.bias.slopes if isinstance(self.bias, Alibi) else self.bias.weight
                bias = added(self.bias, setting, own.detach().to(dtype))
            extras = Extras(self.softcap, None if self.sinks is None else self.sinks.to(dtype))
            query, key, value = (tensor[None] for tensor in given)
            seen = visible.expand(1, 1, q_len, kv_len)
            if turned:
                query, key, value = query.flip(-1), key.flip(-1, -2), value.flip(-2)
                seen, bias = seen.flip(-1), None if bias is None else bias.flip(-1)
            return attention(
                query, key, value, seen, bias=bias, scale=self.scale, extras=extras, dtype=dtype
            ).output

        exact = spell(torch.float64)
        plain = [spell(found.dtype, turned) for turned in (False, True)]
        assert_within_budget(
            found[None],
            exact=exact,
            plain=max(plain, key=partial(largest_error, exact=exact)),
            label=f"{q_len} of {kv_len} tokens in {self}, {kind}",
        )


PATTERNS = (hw.Causal(), hw.Causal() & hw.Window(2, 0), hw.Causal() & hw.Strided(3))


@st.composite
def passes(draw: st.DrawFn, lengths: Sequence[int] = (1, 3, 9, 50, 130, 270)) -> Pass:
    """Draw a pass, in float32 most of the time."""
    kv_heads, group = draw(st.sampled_from([(1, 1), (2, 1), (1, 4), (2, 2), (2, 3)]))
    length = draw(st.sampled_from(lengths))
    sizes = Sizes(
        draw(st.integers(1, 3)), kv_heads, group, length, length, 8, draw(st.sampled_from([8, 5]))
    )
    dtype = draw(st.sampled_from([torch.float32, torch.float32, torch.bfloat16, torch.float64]))
    seed = draw(st.integers(0, 999))
    sinks = torch.randn(sizes.heads, generator=torch.Generator().manual_seed(seed))
    return Pass(
        inputs(sizes, seed=seed, dtype=dtype),
        draw(st.sampled_from(PATTERNS)),
        draw(st.none() | position_biases(sizes.heads)),
        draw(st.sampled_from([None, None, 0.7, -0.5])),
        draw(st.sampled_from([None, None, 3.0])),
        sinks.to(dtype) if draw(st.booleans()) else None,
    )


@st.composite
def ends(draw: st.DrawFn, length: int) -> list[int]:
    """Draw where the pieces of a pass end; single tokens most of the time, empty pieces too."""
    found = [0]
    while found[-1] < length and len(found) < 9:
        size = draw(st.sampled_from([1, 1, 1, 0, 2, 5, 16, 17, 127, 128]))
        found.append(min(length, found[-1] + size))
    return [*found, length] if found[-1] < length else found
