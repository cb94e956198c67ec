"""Linear attention through the compiled kernel."""

from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd import Function, forward_ad
from torch.compiler import is_compiling
from typing_extensions import override

from headwise import _native
from headwise._forks import alone_after_fork
from headwise.ops.linear import operators
from headwise.ops.linear.call import LinearCall
from headwise.ops.linear.derivative import Kept, derive, kept
from headwise.ops.linear.launch import Found, Given, launch
from headwise.ops.linear.state import LinearState, Sums
from headwise.ops.watchers import is_transformed, is_watched
from headwise.patterns.content import PLAIN

# Tokens over which the gradient of a decay is counted at once: each side of a pair is counted by
# itself, and what cancels between them grows with the length. A graph is one node whatever the
# length, which it may leave open, and takes the roundings.
_COUNTED = 256

_COMPUTED = (torch.float32, torch.bfloat16, torch.float16)


def refusals(call: LinearCall) -> list[str]:
    """Return why the compiled kernel will not do."""
    if _native.kernels is None:
        return [_native.reason or "the compiled core is missing"]
    reasons = []
    value = call.value
    if value.device.type != "cpu":
        reasons.append(f"it runs on the CPU, and the tensors are on {value.device}")
    if value.dtype not in _COMPUTED:
        reasons.append(
            f"it computes float32, bfloat16 and float16, and the tensors are {value.dtype}"
        )
    if is_transformed():
        reasons.append("a transform of torch.func is active")
    if forward_ad._current_level >= 0:
        reasons.append("it has no forward-mode derivative, and one may be wanted")
    if torch._C._get_tracing_state() is not None:
        reasons.append("torch.jit is tracing the call")
    for tensor in (call.query, call.key, value):
        if type(tensor) not in PLAIN and not isinstance(tensor, FakeTensor | FunctionalTensor):
            reasons.append(f"a tensor is a {type(tensor).__name__}")
            break
    return reasons


def linear_sums(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    log_gain: Tensor | None,
    offset: Tensor | None,
    log_decay: Tensor | None,
    state: LinearState | None,
    causal: bool,
) -> Sums:
    """Return values and divisors of every row, and the state; see ``sums``."""
    if offset is not None and query.shape[1] != key.shape[1]:
        offset = offset.repeat_interleave(query.shape[1] // key.shape[1], 1)
    before = (None, None, None) if state is None else state
    given = Given(query, key, value, log_gain, offset, log_decay, *before)
    counted = log_decay is not None and log_decay.requires_grad and torch.is_grad_enabled()
    in_parts = counted and not is_compiling() and key.shape[2] > _COUNTED
    return _in_parts(given) if in_parts else _sums(given, causal)


def _sums(given: Given, causal: bool) -> Sums:
    found = _run(given, causal, False)
    return Sums(found.values, found.total, LinearState(*found[2:]))


def _in_parts(given: Given) -> Sums:
    """Take the tokens of a causal call part by part, each with the state of those before."""
    parts: list[Sums] = []
    state: tuple[Tensor | None, ...] = given[6:]
    for start in range(0, given.key.shape[2], _COUNTED):
        part = slice(start, start + _COUNTED)
        query, key, value = (tensor[:, :, part] for tensor in given[:3])
        gain, offset = (
            None if exponent is None else exponent[:, :, part] for exponent in given[3:5]
        )
        cut = Given(query, key, value, gain, offset, given.log_decay, *state)
        parts.append(_sums(cut, True))
        state = parts[-1].state
    return Sums(
        torch.cat([part.values for part in parts], 2),
        torch.cat([part.normaliser for part in parts], 2),
        parts[-1].state,
    )


def _run(given: Given, causal: bool, backwards: bool) -> Found:
    if is_watched(*given):
        return operators.linear_sums(given, causal, backwards)
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in given):
        found = _LinearSums.apply(*given, causal, backwards)  # type: ignore[no-untyped-call]
        return Found(*found)
    return launch(given, causal, backwards)


class _LinearSums(Function):
    """Sums of a call, with a derivative that is made of such sums."""

    @staticmethod
    @override
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        found = launch(Given(*inputs[:9]), *inputs[9:])
        ctx.set_materialize_grads(False)
        ctx.rules = inputs[9:]
        ctx.mark_non_differentiable(found.log_scale)
        ctx.save_for_backward(*inputs[:9], *kept(found, ctx.needs_input_grad))
        return tuple(found)

    @staticmethod
    @override
    @alone_after_fork
    def backward(ctx: Any, *wanted: Tensor | None) -> tuple[Any, ...]:
        saved, count = ctx.saved_tensors, len(Given._fields)
        given, found = Given(*saved[:count]), Kept(*saved[count:])
        needed = ctx.needs_input_grad[:count]
        gradients = derive(_run, given, found, Found(*wanted), needed, *ctx.rules)  # type: ignore[arg-type]
        return (*gradients, None, None)
