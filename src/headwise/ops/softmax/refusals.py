"""Per backend, every reason why it will not take a call."""

from importlib.util import find_spec

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd import forward_ad

from headwise import _native
from headwise.ops.softmax.call import Call
from headwise.ops.watchers import is_functionalized, is_transformed, is_watched
from headwise.patterns.content import PLAIN
from headwise.patterns.spelling import unknown_kind

_COMPUTED = (torch.float32, torch.bfloat16, torch.float16)

# Below it a masked score times the scale is a number like any other; 0 itself is a case of its own.
_LEAST_SCALE = 1e-36

# Numbers per head, the fewest that torch's kernels of FlexAttention take.
_NARROWEST = 16


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
    if call.slopes is not None or call.distances is not None:
        reasons.append("it would need the bias by distance spelled out for every pair")
    if _forward_mode():
        reasons.append("it has no forward-mode derivative, and one may be wanted")
    if is_transformed():
        reasons.append("a torch.func transform is active, under which it takes samples one by one")
    if 0 in call.query.shape or 0 in call.value.shape:
        reasons.append("a size is zero")
    elif _is_masked(call):
        hidden = _hidden(call)
        if hidden is not None and not is_transformed():
            reasons.append(f"{hidden}, so it cannot be told whether masked NaN would leak")
        elif hidden is None and not _stays_finite(call):
            reasons.append(
                "scores may be NaN or infinite, which it lets through where they are masked"
            )
    return reasons


def flex(call: Call) -> list[str]:
    """Return why torch's FlexAttention, compiled for CUDA, will not do."""
    reasons = []
    on_cuda = call.query.device.type == "cuda"
    if not on_cuda:
        reasons.append(f"it is for CUDA, and the tensors are on {call.query.device}")
    elif find_spec("triton") is None:
        reasons.append("torch compiles it through triton, which is not installed")
    if call.query.dtype not in _COMPUTED:
        reasons.append(
            f"it computes float32, bfloat16 and float16, and the tensors are {call.query.dtype}"
        )
    if call.sinks is not None:
        reasons.append("it has no sinks")
    if call.dropout_p > 0.0:
        reasons.append("it has no dropout")
    widths = call.query.shape[3], call.value.shape[3]
    if 0 < min(widths) < _NARROWEST:
        reasons.append(
            f"it takes heads of {_NARROWEST} numbers or more, and these have {min(widths)}"
        )
    if _bias_wants_gradient(call):
        reasons.append("it sums the gradient of a bias in an order that changes from run to run")
    if _forward_mode():
        reasons.append("it has no forward-mode derivative, and one may be wanted")
    hidden = _hidden(call)
    if hidden is not None:
        reasons.append(f"{hidden}, and it has to read the numbers of the call")
    if 0 in call.query.shape or 0 in call.value.shape:
        reasons.append("a size is zero")
    elif on_cuda and hidden is None and _is_masked(call) and not _stays_finite(call):
        reasons.append("scores may be NaN or infinite, which it lets through where they are masked")
    return reasons


def native(call: Call) -> list[str]:
    """Return why the compiled kernels will not do."""
    if _native.kernels is None:
        return [_native.reason or "the compiled core is missing"]
    reasons = []
    if call.query.device.type != "cpu":
        reasons.append(f"it runs on the CPU, and the tensors are on {call.query.device}")
    if call.query.dtype not in _COMPUTED:
        reasons.append(
            f"it computes float32, bfloat16 and float16, and the tensors are {call.query.dtype}"
        )
    if _forward_mode():
        reasons.append("it has no forward-mode derivative, and one may be wanted")
    if is_transformed():
        if torch.compiler.is_compiling():
            reasons.append("torch.compile is tracing a torch.func transform")
        elif is_functionalized():
            reasons.append("torch.func.functionalize is active")
    if torch._C._get_tracing_state() is not None:
        reasons.append("torch.jit is tracing the call")
    if call.pattern is not None and 0.0 < abs(call.scale) < _LEAST_SCALE:
        reasons.append(
            f"with a pattern, its scales are 0 or at least {_LEAST_SCALE:g}, and this is "
            f"{call.scale:g}"
        )
    strange = _strange_tensor(call)
    if strange is not None:
        reasons.append(f"a tensor is a {strange}")
    unknown = None if call.pattern is None or not _in_graph(call) else unknown_kind(call.pattern)
    if unknown is not None:
        reasons.append(f"a graph cannot carry a pattern of another library, {unknown}")
    return reasons


def _is_masked(call: Call) -> bool:
    return call.pattern is not None or call.bias is not None


def _bias_wants_gradient(call: Call) -> bool:
    numbers = call.bias if call.distances is None else call.distances.table
    return torch.is_grad_enabled() and numbers is not None and numbers.requires_grad


def _strange_tensor(call: Call) -> str | None:
    """Name the first kind of tensor that neither kernels nor operators know, if there is one."""
    table = None if call.distances is None else call.distances.table
    for tensor in (call.query, call.key, call.value, call.bias, table, call.sinks):
        if tensor is not None and type(tensor) not in PLAIN and not _stands_in(tensor):
            return type(tensor).__name__
    return None


def _in_graph(call: Call) -> bool:
    return is_watched(call.query, call.key, call.value, call.bias) or is_transformed()


def _stands_in(tensor: Tensor) -> bool:
    """Say whether a tensor is one that torch itself puts in place of another while it traces."""
    return isinstance(tensor, FakeTensor | FunctionalTensor)


def _hidden(call: Call) -> str | None:
    """Say what keeps the numbers of a call from being looked at, if anything does."""
    if is_transformed():
        return "a torch.func transform is active"
    if torch.compiler.is_compiling():
        return "torch.compile is tracing the call"
    if torch._C._get_tracing_state() is not None:
        return "torch.jit is tracing the call"
    if torch._C._len_torch_dispatch_stack():
        return "a mode that watches torch's operations is active"
    for tensor in (call.query, call.key, call.value, call.bias):
        if tensor is not None and type(tensor) not in PLAIN:
            return f"a tensor is a {type(tensor).__name__}"
    return "the tensors hold no data" if call.query.is_meta else None


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
