"""Every reason why a call stays with torch's own implementation."""

from math import isfinite

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd import forward_ad

from headwise import _native
from headwise.ops.watchers import is_functionalized, is_transformed
from headwise.patch.given import Given
from headwise.patch.sizes import is_plain, mask_fits, spread
from headwise.patterns.content import PLAIN

_COMPUTED = (torch.float32, torch.bfloat16, torch.float16)
_NUMBERS = (float, int, torch.SymFloat, torch.SymInt)
_TRACED = (FakeTensor, FunctionalTensor)


def refusals(given: Given) -> list[str]:
    """Return why torch computes a call itself; nothing where ``headwise.attend`` does."""
    if torch._C._get_tracing_state() is not None:
        return ["torch.jit is tracing the call"]
    reasons = _of_kinds(given)
    if reasons:
        return reasons
    if 0 in given.query.shape or 0 in given.key.shape or 0 in given.value.shape:
        reasons.append("a size is zero")
    else:
        _of_sizes(given, reasons)
    if given.is_causal and given.attn_mask is not None:
        reasons.append("attn_mask and is_causal are both given, which torch refuses or joins")
    _of_numbers(given, reasons)
    _of_surroundings(reasons)
    return reasons


def pinned() -> bool:
    """Say whether one of the two ways that torch has on the CPU is switched off."""
    return not (torch._C._get_flash_sdp_enabled() and torch._C._get_math_sdp_enabled())


def _of_kinds(given: Given) -> list[str]:
    """Return what keeps arguments from being looked at, or from being computed natively."""
    query, key, value, mask = given[:4]
    for tensor in (query, key, value, query if mask is None else mask):
        reason = _of_tensor(tensor)
        if reason is not None:
            return [reason]
    reasons = []
    if type(given.is_causal) is not bool or type(given.enable_gqa) is not bool:
        reasons.append("is_causal and enable_gqa are not both bools")
    dtype = query.dtype
    if dtype != key.dtype or dtype != value.dtype:
        reasons.append(f"dtypes differ: {dtype}, {key.dtype}, {value.dtype}")
    elif dtype not in _COMPUTED:
        reasons.append(f"the dtype is {dtype}")
    if mask is not None and mask.dtype not in (torch.bool, torch.float32, dtype):
        reasons.append(f"attn_mask is {mask.dtype}")
    return reasons


def _of_tensor(tensor: Tensor) -> str | None:
    if type(tensor) not in PLAIN and not isinstance(tensor, _TRACED):
        return f"an argument is a {type(tensor).__name__}"
    if tensor.is_nested:
        return "a tensor is nested"
    if tensor.layout is not torch.strided:
        return f"a tensor has the layout {tensor.layout}"
    return None if tensor.is_cpu else f"a tensor is on {tensor.device}"


def _of_sizes(given: Given, reasons: list[str]) -> None:
    if not is_plain(given) and spread(given) is None:
        reasons.append("the sizes of query, key and value do not fit each other")
    elif given.attn_mask is not None and not mask_fits(given):
        reasons.append("attn_mask does not broadcast to (batch…, heads, q_len, kv_len)")


def _of_numbers(given: Given, reasons: list[str]) -> None:
    dropout_p, scale = given.dropout_p, given.scale
    if type(dropout_p) not in _NUMBERS or not 0.0 <= dropout_p <= 1.0:
        reasons.append("dropout_p is no plain number between 0 and 1")
    if scale is not None and (type(scale) not in _NUMBERS or not isfinite(scale)):
        reasons.append("scale is no plain finite number")


def _of_surroundings(reasons: list[str]) -> None:
    if pinned():
        reasons.append("a kernel of torch's is asked for, by sdpa_kernel or torch.backends.cuda")
    if _native.kernels is None:
        reasons.append(_native.reason or "the compiled core is missing")
    if forward_ad._current_level >= 0:
        reasons.append("a forward-mode derivative may be wanted")
    if is_transformed():
        if _derives_twice():
            reasons.append("torch.func derives the call twice")
        if torch.compiler.is_compiling():
            reasons.append("torch.compile is tracing a torch.func transform")
        elif is_functionalized():
            reasons.append("torch.func.functionalize is active")


def _derives_twice() -> bool:
    kinds = torch._C._functorch
    levels = kinds.get_interpreter_stack() or []
    return sum(level.key() == kinds.TransformType.Grad for level in levels) > 1
