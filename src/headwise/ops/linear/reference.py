"""The definition of linear attention, in plain PyTorch; every fast path is tested against it.

Weights are spelled out, (batch, heads, q_len, kv_len), in float32 or wider. A number that is not
finite is kept out of the products, and makes NaN of the rows that see it.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from headwise.ops.linear.call import LinearCall, divided
from headwise.ops.linear.precision import without_autocast
from headwise.ops.linear.scales import NOTHING, without_nothing
from headwise.ops.linear.state import LinearState, work_dtype


class _Spelled(NamedTuple):
    """Weights that are not divided, their divisors, what reads the state, and who is lost."""

    weights: Tensor
    divisor: Tensor
    of_state: Tensor
    lost: Tensor


def run(call: LinearCall) -> tuple[Tensor, LinearState]:
    """Return the output, (batch, q_heads, q_len, value_dim), and the state after the last key."""
    with without_autocast(call.query):
        found = _spelled(call, None, None)
        value = _per_head(call, call.value.to(found.weights.dtype))
        output = found.weights @ _finite(value)
        if call.state is not None:
            output = output + found.of_state @ _per_head(call, call.state.sums)
        if call.normalize:
            output = divided(output, found.divisor)
        unseen = ~_sees(call, _places(call)[0]).to(value.device)
        odd = (~value.isfinite()).unsqueeze(2).masked_fill(unseen[:, :, None], False).any(-2)
        return output.masked_fill(odd | found.lost, float("nan")), _state(call)


def weights(call: LinearCall, rows: list[int] | None, heads: list[int] | None) -> Tensor:
    """Return what every value is multiplied by, for chosen rows and heads of a call."""
    with without_autocast(call.query):
        found = _spelled(call, rows, heads)
        shares = divided(found.weights, found.divisor) if call.normalize else found.weights
        return shares.masked_fill(found.lost, float("nan"))


def _spelled(call: LinearCall, rows: list[int] | None, heads: list[int] | None) -> _Spelled:
    """Spell chosen rows and heads out; the largest factor of a row is taken out of it.

    The factor of a key is ``exp(log_gain + distance * log_decay)``. With gains the largest could
    overflow; without, none is above 1, and nothing is taken out.
    """
    work, device = work_dtype(call.value), call.query.device
    which = slice(None) if rows is None else torch.tensor(rows, dtype=torch.int64, device=device)
    chosen = slice(None) if heads is None else torch.tensor(heads, dtype=torch.int64, device=device)
    query = call.query.to(work)[:, chosen][:, :, which]
    key = _per_head(call, call.key.to(work))[:, chosen]
    place, key_place = (each.to(device) for each in _places(call))
    place = place[which]
    sees = _sees(call, place)
    gains, decay, before = _numbers(call)
    exponents = gains.unsqueeze(-2) + decay[:, None, None] * (place.unsqueeze(-1) - key_place)
    exponents = exponents.masked_fill(~sees, NOTHING)
    behind = (before.unsqueeze(-1) + decay.unsqueeze(-1) * (place + 1)).unsqueeze(-1)
    top = torch.zeros_like(behind)
    if call.log_gain is not None:
        top = without_nothing(torch.cat([exponents, behind], -1).detach().amax(-1, keepdim=True))
    shares, share = (_per_head(call, (each - top).exp())[:, chosen] for each in (exponents, behind))

    products = _finite(query) @ _finite(key).transpose(-1, -2)
    found = products.masked_fill(~sees, 0.0) * shares
    odd = ~key.isfinite().all(-1) | _per_head(call, _odd(call))[:, chosen]
    lost = ~query.isfinite().all(-1) | (odd.unsqueeze(-2) & sees).any(-1)
    of_state, divisor = _finite(query) * share, found.sum(-1)
    if call.state is not None:
        normaliser = _per_head(call, call.state.normaliser)[:, chosen]
        divisor = divisor + (of_state @ normaliser.unsqueeze(-1)).squeeze(-1)
    return _Spelled(found, divisor, of_state, lost.unsqueeze(-1))


def _state(call: LinearCall) -> LinearState:
    """Return the state after the last key."""
    gains, decay, before = _numbers(call)
    length, kv_len = max(call.query.shape[2], call.key.shape[2]), call.key.shape[2]
    left = torch.arange(kv_len - 1, -1, -1, device=call.key.device)
    exponents = torch.cat(
        [gains + decay.unsqueeze(-1) * left, (before + decay * length).unsqueeze(-1)], -1
    )
    scale = torch.zeros_like(before)
    if call.log_gain is not None:
        scale = exponents.detach().amax(-1)
    shares = (exponents - without_nothing(scale).unsqueeze(-1)).exp()
    key = call.key.to(shares.dtype) * shares[..., :-1, None]
    sums, normaliser = key.transpose(-1, -2) @ call.value.to(shares.dtype), key.sum(-2)
    if call.state is not None:
        sums = sums + call.state.sums * shares[..., -1:, None]
        normaliser = normaliser + call.state.normaliser * shares[..., -1:]
    return LinearState(sums, normaliser, scale)


def _numbers(call: LinearCall) -> tuple[Tensor, Tensor, Tensor]:
    """Return gains of keys, decays of heads, and the scale of the state; logs."""
    work = work_dtype(call.value)
    gains = call.key.new_zeros(call.key.shape[:-1], dtype=work)
    if call.log_gain is not None:
        gains = call.log_gain.masked_fill(_odd(call), NOTHING)
    decay = call.log_decay
    if decay is None:
        decay = call.key.new_zeros(call.key.shape[1], dtype=work)
    if call.state is None:
        return gains, decay, gains.new_full(gains.shape[:-1], NOTHING)
    return gains, decay, call.state.log_scale


def _places(call: LinearCall) -> tuple[Tensor, Tensor]:
    """Return where queries and keys stand, the earliest at 0 and the last of both side by side."""
    q_len, kv_len = call.query.shape[2], call.key.shape[2]
    length = max(q_len, kv_len)
    return torch.arange(length - q_len, length), torch.arange(length - kv_len, length)


def _sees(call: LinearCall, place: Tensor) -> Tensor:
    """Return which keys queries at some places see, (rows, kv_len)."""
    keys = _places(call)[1].to(place.device)
    sees = keys <= place.unsqueeze(-1)
    return sees if call.causal else torch.ones_like(sees)


def _odd(call: LinearCall) -> Tensor:
    """Return which keys have a gain that is no number, (batch, kv_heads, kv_len)."""
    if call.log_gain is None:
        return torch.zeros(call.key.shape[:-1], dtype=torch.bool, device=call.key.device)
    return call.log_gain.isnan() | call.log_gain.isposinf()


def _per_head(call: LinearCall, tensor: Tensor) -> Tensor:
    return tensor.repeat_interleave(call.group, 1)


def _finite(numbers: Tensor) -> Tensor:
    return numbers.masked_fill(~numbers.isfinite(), 0.0)
