"""The derivative of linear attention's sums, which is made of such sums again.

With ``G`` for the gradients of values and total side by side, and ``V`` for values and a 1:

- a query's gradient is the sum over the keys it sees of ``(G_i · V_j) key_j``,
- a key's that over the queries that see it of ``(V_j · G_i) query_i``,
- a value's that over the same queries of ``(key_j · query_i) d_values_i``,

each pair with the weight it has forward. Exponents, and the scales of states, are constants: they
cancel. The state that the last two begin with is the gradient of the state after.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from headwise.ops.linear.launch import Found, Given
from headwise.ops.linear.scales import NOTHING, without_nothing

Sums: TypeAlias = Callable[[Given, bool, bool], Found]

_QUERY, _KEY, _VALUE, _DECAY, _SUMS, _NORMALISER = 0, 1, 2, 5, 6, 7


class Kept(NamedTuple):
    """What a derivative needs of the results of its call: no values and totals.

    A user may change an output in place, so none is kept that nobody reads.

    Attributes:
        sums: The state after the last key where the decay wants a gradient, else ``None``.
        normaliser: Likewise.
        log_scale: That of the state.
    """

    sums: Tensor | None
    normaliser: Tensor | None
    log_scale: Tensor


def kept(found: Found, needed: Sequence[bool]) -> Kept:
    """Return what is to be kept of the results for the gradients that may be asked for."""
    if needed[_DECAY]:
        return Kept(found.sums, found.normaliser, found.log_scale)
    return Kept(None, None, found.log_scale)


def derive(
    run: Sums,
    given: Given,
    found: Kept,
    wanted: Found,
    needed: Sequence[bool],
    causal: bool,
    backwards: bool,
) -> list[Tensor | None]:
    """Return the gradients of what was given.

    Args:
        run: Computes sums, with a derivative of its own where one may be wanted.
        given: The tensors of the call.
        found: What was kept of what it computed.
        wanted: The gradients of that; the last one is not looked at.
        needed: Which gradients are wanted.
        causal: As in the call.
        backwards: As in the call.
    """
    asked = _Asked(run, given, found, wanted, causal, backwards)
    results: list[Tensor | None] = [None] * len(given)
    d_query = d_key = None
    if needed[_QUERY] or needed[_DECAY]:
        d_query = asked.of_query()
    if needed[_KEY] or needed[_DECAY] or needed[_SUMS] or needed[_NORMALISER]:
        d_key, results[_SUMS], results[_NORMALISER] = asked.of_key()
    if needed[_VALUE]:
        results[_VALUE] = asked.of_value()
    if needed[_DECAY] and d_query is not None and d_key is not None:
        results[_DECAY] = asked.of_decay(d_query, d_key, results[_SUMS], results[_NORMALISER])
    if d_query is not None:
        results[_QUERY] = d_query.to(given.query.dtype)
    if d_key is not None:
        results[_KEY] = d_key.to(given.key.dtype)
    return [part if need else None for part, need in zip(results, needed, strict=True)]


class _Asked:
    """One derivative: what its sums have in common."""

    def __init__(
        self,
        run: Sums,
        given: Given,
        found: Kept,
        wanted: Found,
        causal: bool,
        backwards: bool,
    ) -> None:
        self.run, self.given, self.found, self.wanted = run, given, found, wanted
        self.causal, self.backwards = causal, backwards
        d_values, d_total = wanted.values, wanted.total
        if d_values is None:
            d_values = self._zeros(*given.query.shape[:3], given.value.shape[3])
        if d_total is None and wanted.normaliser is not None:
            d_total = self._zeros(*given.query.shape[:3])
        value = given.value.float()
        self.d_values = d_values
        self.has_total = d_total is not None
        self.outer = d_values if d_total is None else _beside(d_values, d_total)
        self.inner = value if d_total is None else _beside(value, value.new_ones(value.shape[:-1]))
        self.offset = given.offset
        if not causal and given.offset is None and given.gain is not None:
            scale = -without_nothing(found.log_scale)
            scale = scale.repeat_interleave(given.query.shape[1] // max(given.kv_heads, 1), 1)
            self.offset = scale.unsqueeze(-1).expand(given.query.shape[:3])

    def of_query(self) -> Tensor:
        """Return (batch, readers, q_len, features)."""
        given = self.given
        state: tuple[Tensor | None, ...] = (None, None, None)
        if given.sums is not None and given.normaliser is not None:
            sums = _beside(given.sums, given.normaliser) if self.has_total else given.sums
            state = (*_turned(sums), given.log_scale)
        asked = Given(
            self.outer, self.inner, given.key, given.gain, self.offset, given.log_decay, *state
        )
        return self.run(asked, self.causal, self.backwards).values

    def of_key(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return (batch, writers, kv_len, features), and the gradients of the state before."""
        given = self.given
        d_sums, d_normaliser = self.wanted.sums, self.wanted.normaliser
        state: tuple[Tensor | None, ...] = (None, None, None)
        if d_sums is not None or d_normaliser is not None:
            batch, width = given.query.shape[0], given.key.shape[3]
            whole, last = d_sums, d_normaliser
            if whole is None:
                whole = self._zeros(batch, given.kv_heads, width, given.value.shape[3])
            if self.has_total:
                if last is None:
                    last = self._zeros(batch, given.kv_heads, width)
                whole = _beside(whole, last)
            state = (*_turned(whole * self._one(-1)), self._scale_behind())
        asked = Given(
            self.inner, self.outer, given.query, self.offset, given.gain, given.log_decay, *state
        )
        found = self.run(asked, self.causal, not self.backwards)
        if given.sums is None or given.log_scale is None:
            return found.values, None, None
        exponent = found.log_scale + given.log_scale
        if given.log_decay is not None:
            exponent = exponent + given.log_decay.detach()
        before = found.sums.transpose(-1, -2) * exponent.exp()[..., None, None] * self._one(1)
        if not self.has_total:
            return found.values, before, None
        return found.values, before[..., :-1], before[..., -1]

    def of_value(self) -> Tensor:
        """Return (batch, writers, kv_len, value_dim)."""
        given = self.given
        state: tuple[Tensor | None, ...] = (None, None, None)
        if self.wanted.sums is not None:
            state = (
                self.wanted.sums * self._one(-1),
                self.wanted.sums.new_zeros(self.wanted.sums.shape[:-1]),
                self._scale_behind(),
            )
        asked = Given(
            *(given.key, given.query, self.d_values, self.offset, given.gain, given.log_decay),
            *state,
        )
        return self.run(asked, self.causal, not self.backwards).values.to(given.value.dtype)

    def of_decay(
        self,
        d_query: Tensor,
        d_key: Tensor,
        d_sums: Tensor | None,
        d_normaliser: Tensor | None,
    ) -> Tensor:
        """Return (kv_heads,): every pair counts as often as its distance.

        A distance is the place of the reader less that of the writer, so each side is counted by
        itself.
        """
        given, found, wanted = self.given, self.found, self.wanted
        length = given.key.shape[2]
        place = torch.arange(length, device=given.key.device, dtype=torch.float64)
        if self.backwards:
            place = place.flip(0)
        heads = given.kv_heads

        def counted(tensor: Tensor, gradient: Tensor) -> Tensor:
            each = (tensor.double() * gradient.double()).sum(-1) * place
            group = each.shape[1] // max(heads, 1)
            return each.view(each.shape[0], heads, group, length).sum((0, 2, 3))

        whole = counted(given.query, d_query) - counted(given.key, d_key)
        for part, gradient, weight in (
            (found.sums, wanted.sums, length - 1.0),
            (found.normaliser, wanted.normaliser, length - 1.0),
            (given.sums, d_sums, 1.0),
            (given.normaliser, d_normaliser, 1.0),
        ):
            if part is not None and gradient is not None:
                product = part.double() * gradient.double()
                whole = whole + weight * product.transpose(0, 1).flatten(1).sum(-1)
        return whole.float()

    def _zeros(self, *shape: int) -> Tensor:
        return self.given.query.new_zeros(shape, dtype=torch.float32)

    def _one(self, steps: int) -> Tensor | float:
        """Return 1 for every head, with the derivative of some steps of its decay."""
        log_decay = self.given.log_decay
        if log_decay is None or not torch.is_grad_enabled():
            return 1.0
        return (steps * (log_decay - log_decay.detach())).exp()[:, None, None]

    def _scale_behind(self) -> Tensor:
        """Return the exponent of the state after, seen from one step behind the last key."""
        exponent = -self.found.log_scale
        if self.given.log_decay is not None:
            exponent = exponent - self.given.log_decay.detach()
        return exponent.masked_fill(self.found.log_scale == NOTHING, NOTHING)


def _beside(wide: Tensor, column: Tensor) -> Tensor:
    return torch.cat([wide, column.unsqueeze(-1)], -1)


def _turned(sums: Tensor) -> tuple[Tensor, Tensor]:
    """Return a state whose features and values have changed places, with an empty normaliser."""
    sums = sums.transpose(-1, -2)
    return sums, sums.new_zeros(sums.shape[:-1])
