"""Generator of calls with everything that changes weights, and of their gradients."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional

import headwise as hw
from headwise.ops.softmax.dropout import draw_seed
from headwise.patterns import Pattern
from headwise.positions import Alibi, RelativeBias
from tests.support.budget import assert_within_budget, largest_error
from tests.support.fused_formula import Scored, gradients
from tests.support.oracle import CLOSED, Extras, attention
from tests.support.paths import Path
from tests.support.philox import factors
from tests.support.position_rules import added
from tests.support.settings import Setting
from tests.support.shapes import Inputs, Sizes, inputs

LEARNED = ("d_bias", "d_sinks")


class Derived(NamedTuple):
    """What a call gives, forwards and backwards; ``None`` = no such argument."""

    output: Tensor
    lse: Tensor
    d_query: Tensor
    d_key: Tensor
    d_value: Tensor
    d_bias: Tensor | None
    d_sinks: Tensor | None


class Free(NamedTuple):
    """The tensors of a call that want a gradient; ``bias`` is a tensor or the learned weight."""

    query: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor | None
    sinks: Tensor | None

    def to(self, dtype: torch.dtype) -> "Free":
        """Return fresh leaves in ``dtype``, where they are not wider already."""
        made = [
            None if t is None else _leaf(t.to(torch.promote_types(t.dtype, dtype))) for t in self
        ]
        return Free(*cast(Any, made))


@dataclass(frozen=True, repr=False)
class WholeCall:
    """The arguments of one call and the gradients that come back to it."""

    given: Inputs
    setting: Setting
    pattern: Pattern | None
    bias: Tensor | Alibi | RelativeBias | None
    scale: float | None
    softcap: float | None
    sinks: Tensor | None
    dropout_p: float
    seed: int
    d_output: Tensor
    d_lse: Tensor | None

    def __repr__(self) -> str:
        shapes = ", ".join(f"{tuple(t.shape)} with strides {t.stride()}" for t in self.given)
        bias = tuple(self.bias.shape) if isinstance(self.bias, Tensor) else self.bias
        return (
            f"WholeCall({self.given.query.dtype}, {shapes}, {self.setting}, "
            f"{repr(self.pattern)[:300]}, bias {bias}, scale {self.scale}, softcap "
            f"{self.softcap}, sinks {self.sinks is not None}, dropout {self.dropout_p}, seed "
            f"{self.seed}, d_output {self.d_output.stride()}, d_lse {self.d_lse is not None})"
        )

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, q_heads, q_len, kv_len)."""
        s = self.setting
        return s.batch, s.heads, s.q_len, s.kv_len

    def free(self) -> Free:
        """Return leaves with the strides of what is given."""
        learned = self.bias.weight if isinstance(self.bias, RelativeBias) else self.bias
        bias = _leaf(learned) if isinstance(learned, Tensor) else None
        query, key, value = map(_leaf, self.given)
        return Free(query, key, value, bias, None if self.sinks is None else _leaf(self.sinks))

    def visible(self) -> Tensor | None:
        """Spell the pattern out; ``None`` where there is none."""
        if self.pattern is None:
            return None
        return self.pattern.dense(self.setting.q_len, self.setting.kv_len, **self.setting.offsets)

    def run(self, backend: str) -> Derived:
        """Run the call and its backward on the path that is taken."""
        free = self.free()
        bias: Any = free.bias if isinstance(self.bias, Tensor) else self.bias
        if isinstance(self.bias, RelativeBias):
            free = free._replace(bias=self.bias.weight)
        torch.manual_seed(self.seed)
        keywords: Any = {"bias": bias, "scale": self.scale, "softcap": self.softcap}
        keywords |= {"sinks": free.sinks, "dropout_p": self.dropout_p, "backend": backend}
        keywords |= self.setting.offsets
        if backend != "sdpa":
            found = hw.attend_with_lse(*free[:3], self.pattern, **keywords)
            return self._derive(*found, free)
        lse = self.spelled(torch.float64).lse.to(torch.float32)  # it returns none
        return self._derive(hw.attend(*free[:3], self.pattern, **keywords), lse, free)

    def spelled(self, dtype: torch.dtype, turned: bool = False) -> Derived:
        """Spell the call out in ``dtype``; ``turned`` = every sum is taken backwards."""
        free = self.free().to(dtype)
        return self._derive(*self._spell(free, partial(_eager, self, dtype), turned), free)

    def plain(self, exact: Derived) -> Derived:
        """Return the plain spelling's answer in the dtype under test, the unluckier of two orders.

        It is torch's own attention where that can say the call, and the formula elsewhere, derived
        by autograd or as fused kernels derive it, whichever is unluckier. The formula, in float32
        at least, also stands for the log-sum-exp, and for what a bias or sinks learn.
        """
        dtype = self.given.query.dtype
        wide = torch.promote_types(dtype, torch.float32)
        tries = []
        for turned in (False, True):
            found = self.spelled(dtype, turned)
            if self._known_to_torch():
                free = self.free().to(dtype)
                told = self._derive(*self._spell(free, partial(_torch, self), turned), free)
                found = told._replace(d_bias=found.d_bias, d_sinks=found.d_sinks)
            tries.append(found._replace(lse=self.spelled(wide, turned).lse))
        tries.append(tries[0]._replace(**self._fused(self.free().to(dtype))))
        worst = [
            None if e is None else max(pair, key=partial(largest_error, exact=e))
            for *pair, e in zip(*tries, exact, strict=True)
        ]
        return Derived(*cast(Any, worst))

    def _fused(self, free: Free) -> dict[str, Tensor]:
        """Return the gradients of all but sinks as fused kernels derive them."""
        found: dict[str, Tensor] = {}

        def way(
            query: Tensor, key: Tensor, value: Tensor, seen: Tensor, *rest: Tensor | None
        ) -> tuple[Tensor, Tensor]:
            scale = query.shape[-1] ** -0.5 if self.scale is None else self.scale
            bias, sinks, kept = (None if part is None else part.detach() for part in rest)
            rules = Scored(seen, bias, sinks, kept, scale, self.softcap)
            tensors = (query.detach(), key.detach(), value.detach())
            *parts, d_bias = gradients(*tensors, rules, self.d_output, self.d_lse)
            found.update(zip(("d_query", "d_key", "d_value"), parts, strict=True))
            if free.bias is not None and rest[0] is not None:
                d_bias = d_bias.to(rest[0].dtype)
                (found["d_bias"],) = torch.autograd.grad(rest[0], free.bias, d_bias)
            return query, key

        self._spell(free, way, False)
        return found

    def _known_to_torch(self) -> bool:
        return self.softcap is None and self.d_lse is None and self.dropout_p == 0

    def _spell(
        self, free: Free, way: Callable[..., tuple[Tensor, Tensor]], turned: bool
    ) -> tuple[Tensor, Tensor]:
        query, key, value, bias, sinks = free
        if isinstance(self.bias, Alibi):
            bias = self.bias.slopes.to(query.dtype)
        if not isinstance(self.bias, Tensor) and bias is not None:
            assert self.bias is not None
            bias = added(self.bias, self.setting, bias)
        visible, kept = self.visible(), None
        if self.dropout_p:
            torch.manual_seed(self.seed)
            kept = factors(int(draw_seed()), self.dropout_p, self.shape)
        seen = torch.ones(self.shape, dtype=torch.bool) if visible is None else visible
        seen = seen.expand(self.shape)
        if bias is not None:
            bias = bias.expand(self.shape)
            seen = seen & (bias != CLOSED)
        if not turned:
            return way(query, key, value, seen, bias, sinks, kept)
        bias, kept = (None if t is None else t.flip(-1, -2) for t in (bias, kept))
        found = way(
            query.flip(-1, -2),
            key.flip(-1, -2),
            value.flip(-2),
            seen.flip(-1, -2),
            bias,
            sinks,
            kept,
        )
        return found[0].flip(-2), found[1].flip(-1)

    def _derive(self, output: Tensor, lse: Tensor, free: Free) -> Derived:
        outputs, weights = [output], [self.d_output.to(output.dtype)]
        if self.d_lse is not None:
            outputs, weights = [output, lse], [*weights, self.d_lse.to(lse.dtype)]
        wanted = [tensor for tensor in free if tensor is not None]
        found = iter(torch.autograd.grad(outputs, wanted, weights, allow_unused=True))
        gradients = [None if tensor is None else next(found) for tensor in free]
        return Derived(output.detach(), lse.detach(), *cast(Any, gradients))


def assert_derived(found: Derived, *, exact: Derived, plain: Derived, label: str) -> None:
    """Hold output, log-sum-exp and every gradient to the budget."""
    for name, mine, right, given in zip(Derived._fields, found, exact, plain, strict=True):
        if mine is not None:
            assert right is not None
            assert given is not None
            # A bias may be wider than the call; what it learns is as exact as the call.
            usual = given.to(found.output.dtype) if name in LEARNED else given
            assert_within_budget(mine, exact=right, plain=usual, label=f"{label} {name}")


def simple(
    sizes: Sizes, *, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any
) -> WholeCall:
    """Return a call of normal numbers with nothing else to it, but for ``changes``."""
    s = sizes
    return replace(
        WholeCall(
            inputs(s, seed=seed, dtype=dtype),
            Setting(s.batch, s.heads, s.q_len, s.kv_len),
            pattern=None,
            bias=None,
            scale=None,
            softcap=None,
            sinks=None,
            dropout_p=0.0,
            seed=seed,
            d_output=inputs(s._replace(head_dim=s.value_dim), seed=seed + 1, dtype=dtype).query,
            d_lse=None,
        ),
        **changes,
    )


def judged_whole(path: Path, call: WholeCall, label: str = "") -> Derived:
    """Return what a call gives on a path, after holding all of it to the budget."""
    exact = call.spelled(torch.float64)
    with path.taken() as backend:
        found = call.run(backend)
    assert_derived(found, exact=exact, plain=call.plain(exact), label=f"{path} {label}")
    return found


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_()


def _eager(
    call: WholeCall,
    dtype: torch.dtype,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seen: Tensor,
    *rest: Tensor | None,
) -> tuple[Tensor, Tensor]:
    bias, sinks, kept = rest
    extras = Extras(call.softcap, sinks, kept)
    found = attention(
        query, key, value, seen, bias=bias, scale=call.scale, extras=extras, dtype=dtype
    )
    return found.output, found.lse


def _torch(
    call: WholeCall,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seen: Tensor,
    *rest: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Say the call to torch so that it takes its fused path: one dim for all, nothing learned.

    Sinks are the scores of one more key, whose value is 0.
    """
    bias, sinks, _ = rest
    group, dim, value_dim = query.shape[1] // key.shape[1], query.shape[-1], value.shape[-1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    wide, more = max(dim, value_dim), 0 if sinks is None else 1
    mask = None if seen.all() else seen
    if bias is not None or sinks is not None:
        mask = torch.zeros(call.shape) if bias is None else bias.detach()
        mask = mask.masked_fill(~seen, CLOSED)
    if sinks is not None:
        assert mask is not None
        column = sinks.detach().view(-1, 1, 1).expand(*call.shape[:3], 1)
        mask = torch.cat([mask, column.masked_fill(~seen.any(-1, keepdim=True), CLOSED)], -1)
    output = functional.scaled_dot_product_attention(
        functional.pad(query, (0, wide - dim)),
        functional.pad(key, (0, wide - dim, 0, more)),
        functional.pad(value, (0, wide - value_dim, 0, more)),
        attn_mask=mask,
        scale=dim**-0.5 if call.scale is None else call.scale,
    )
    return output[..., :value_dim], query.new_zeros(query.shape[:3])
