"""Per backend, every reason why it will not take a call."""

import torch
from torch import Tensor

from headwise import _native
from headwise.ops.softmax.call import Call


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
    if call.query.numel() == 0 or call.key.numel() == 0 or call.value.numel() == 0:
        reasons.append("a size is zero")
    if _under_transform(call):
        reasons.append("a torch.func transform is active, and it cannot be told whether NaN leaks")
    elif (call.pattern is not None or call.bias is not None) and not _stays_finite(call):
        reasons.append("scores may be NaN or infinite, which it lets through where they are masked")
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
    if call.softcap is not None:
        reasons.append("it has no softcap")
    if call.sinks is not None:
        reasons.append("it has no sinks")
    if call.dropout_p > 0.0:
        reasons.append("it has no dropout")
    if _under_transform(call):
        reasons.append("a torch.func transform is active")
    if torch.compiler.is_compiling():
        reasons.append("torch.compile is tracing the call")
    return reasons


def _under_transform(call: Call) -> bool:
    return torch._C._functorch.peek_interpreter_stack() is not None


def _stays_finite(call: Call) -> bool:
    """Say whether no score can be NaN or overflow, whatever is masked."""
    largest = _peak(call.query) * _peak(call.key) * max(call.query.shape[-1], 1)
    largest = largest * max(abs(call.scale), 1.0)
    if call.bias is not None:
        largest = (
            largest + call.bias.detach().masked_fill(call.bias == float("-inf"), 0.0).abs().max()
        )
    return bool(largest < torch.finfo(call.query.dtype).max) and bool(call.value.isfinite().all())


def _peak(numbers: Tensor) -> Tensor:
    return numbers.detach().abs().amax().double()
