"""Per backend, every reason why it will not take a call."""

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from headwise import _native
from headwise.ops.softmax.call import Call

_PLAIN = (Tensor, nn.Parameter)


def reference(call: Call) -> list[str]:
    """Return nothing: the reference takes every call."""
    return []


def sdpa(call: Call) -> list[str]:
    """Return why torch's ``scaled_dot_product_attention`` will not do."""
    reasons = []
    if call.want_lse:
        reasons.append("it returns no log-sum-exp")
    if call.softcap is not None:
        reasons.append("it has no softcap")
    if call.sinks is not None:
        reasons.append("it has no sinks")
    if _forward_mode():
        reasons.append("it has no forward-mode derivative, and one may be wanted")
    if _under_transform():
        reasons.append("a torch.func transform is active, under which it takes samples one by one")
    if 0 in call.query.shape or 0 in call.value.shape:
        reasons.append("a size is zero")
    elif call.pattern is not None or call.bias is not None:
        hidden = _hidden(call)
        if hidden is not None and not _under_transform():
            reasons.append(f"{hidden}, so it cannot be told whether masked NaN would leak")
        elif hidden is None and not _stays_finite(call):
            reasons.append(
                "scores may be NaN or infinite, which it lets through where they are masked"
            )
    return reasons


def native(call: Call) -> list[str]:
    """Return why the compiled kernels will not do."""
    if _native.kernels is None:
        return [_native.reason or "the compiled core is missing"]
    reasons = []
    if call.query.device.type != "cpu":
        reasons.append(f"it runs on the CPU, and the tensors are on {call.query.device}")
    if call.query.dtype != torch.float32:
        reasons.append(f"it computes float32, and the tensors are {call.query.dtype}")
    if call.wants_gradient:
        reasons.append("it computes no gradients, and one is wanted")
    if _forward_mode():
        reasons.append("it has no forward-mode derivative, and one may be wanted")
    if call.softcap is not None:
        reasons.append("it has no softcap")
    if call.sinks is not None:
        reasons.append("it has no sinks")
    if call.dropout_p > 0.0:
        reasons.append("it has no dropout")
    hidden = _hidden(call)
    if hidden is not None:
        reasons.append(hidden)
    return reasons


def _hidden(call: Call) -> str | None:
    """Say what keeps the numbers of a call from being looked at, if anything does."""
    if _under_transform():
        return "a torch.func transform is active"
    if torch.compiler.is_compiling():
        return "torch.compile is tracing the call"
    if torch._C._get_tracing_state() is not None:
        return "torch.jit is tracing the call"
    if torch._C._len_torch_dispatch_stack():
        return "a mode that watches torch's operations is active"
    for tensor in (call.query, call.key, call.value, call.bias):
        if tensor is not None and type(tensor) not in _PLAIN:
            return f"a tensor is a {type(tensor).__name__}"
    return "the tensors hold no data" if call.query.is_meta else None


def _under_transform() -> bool:
    return torch._C._functorch.peek_interpreter_stack() is not None


def _forward_mode() -> bool:
    return forward_ad._current_level >= 0


def _stays_finite(call: Call) -> bool:
    """Say whether no score can be NaN or overflow, whatever is masked."""
    largest = _peak(call.query) * _peak(call.key) * call.query.shape[-1]
    largest = largest * max(abs(call.scale), 1.0)
    if call.bias is not None:
        largest = largest + _peak(call.bias.masked_fill(call.bias == float("-inf"), 0.0))
    return bool(largest < torch.finfo(call.query.dtype).max) and bool(call.value.isfinite().all())


def _peak(numbers: Tensor) -> Tensor:
    return numbers.detach().abs().amax().double()
