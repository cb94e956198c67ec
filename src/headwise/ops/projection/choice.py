"""On what a linear map runs in inference: our kernel for few rows, oneDNN, or torch."""

import platform
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import _get_current_function_mode_stack

from headwise import _native
from headwise.ops.projection.packed import bytes_of
from headwise.ops.projection.switch import in_use
from headwise.ops.watchers import is_transformed, is_watched

# Rows up to which reading the weights is what costs, whatever their number; docs/decisions/0020.
FEW_ROWS = 4
# And where the whole call is so small that starting a library costs more; docs/decisions/0027.
_FEW_ROWS_OF_SMALL_CALLS = 16
_SMALL_CALL = 3 << 20
# Multiplications of a float32 call below which starting oneDNN costs more than it saves.
_WORTH_ONEDNN = 1 << 20

_DTYPES = (torch.float32, torch.bfloat16)


class Projection(NamedTuple):
    """On what one linear map runs.

    Attributes:
        library: ``"rows"``: headwise's kernel for few rows; ``"onednn"``; or ``"torch"``:
            ``torch.nn.functional.linear``.
        packed: Whether it reads a packed copy of the weight.
        packed_bytes: What packed copies of this weight take now; 0 before the first call.
        refusals: For every way, the reasons against it.
    """

    library: str
    packed: bool
    packed_bytes: int
    refusals: dict[str, list[str]]


def explain_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Projection:
    """Say on what ``linear`` would run these tensors, and what speaks against the other ways."""
    general = list(against_all(x, weight, bias))
    refusals = {
        "rows": general + list(against_rows(x, weight)),
        "onednn": general + list(against_onednn(x, weight)),
    }
    library = next((name for name, reasons in refusals.items() if not reasons), "torch")
    refusals["packed"] = [*general, *against_packing(weight)]
    keeps = library == "onednn" and not refusals["packed"]
    return Projection(library, keeps, bytes_of(weight), refusals)


def against_all(x: Tensor, weight: Tensor, bias: Tensor | None) -> Iterator[str]:
    """Say what speaks for torch's own function whatever the sizes are."""
    tensors = (x, weight) if bias is None else (x, weight, bias)
    if is_watched(*tensors) or is_transformed() or _is_traced():
        yield "a compiler, a mode or a transform follows torch's operations"
        return
    if in_use() == "torch":
        yield "headwise.nn.projections('torch') or HEADWISE_PROJECTIONS=torch asks for torch's own"
    if forward_ad._current_level >= 0:
        yield "forward-mode differentiation is on"
    if not x.is_cpu:
        yield f"it is for the CPU, and the input is on {x.device}"
    elif torch.is_autocast_enabled("cpu"):
        yield "autocast chooses the dtype"
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        yield "a gradient is wanted"
    dtype, on_cpu = x.dtype, x.is_cpu
    alike = usual = True
    for tensor in tensors:
        alike = alike and tensor.dtype == dtype and tensor.is_cpu == on_cpu
        usual = usual and tensor.layout == torch.strided and tensor.numel() > 0
        usual = usual and not tensor.is_neg()
    if not alike:
        yield "the tensors differ in dtype or device"
    if not usual:
        yield "a tensor is sparse, packed, empty, or a view with another sign"
    elif x.ndim == 0 or weight.ndim != 2 or x.shape[-1] != weight.shape[1]:
        yield "the sizes do not fit together"
    elif bias is not None and bias.shape != weight.shape[:1]:
        yield "the bias is not one number for each output"


def against_rows(x: Tensor, weight: Tensor) -> Iterator[str]:
    """Say what speaks against our kernel for few rows."""
    if _native.kernels is None:
        yield str(_native.reason)
    if x.dtype not in (*_DTYPES, torch.float16):
        yield f"it computes float32, bfloat16 and float16, and the input is {x.dtype}"
    if x.dtype == torch.float16 and x.numel() == x.shape[-1]:
        yield "torch reads the weight faster for one row of float16"
    numbers, inputs = x.numel(), x.shape[-1]
    if numbers > FEW_ROWS * inputs:
        small = numbers <= _FEW_ROWS_OF_SMALL_CALLS * inputs and x.dtype in _DTYPES
        if not small or numbers * weight.shape[0] > _SMALL_CALL:
            yield f"it is for at most {FEW_ROWS} rows, and for small calls"
    if weight.shape[-1] > 1 and weight.stride(-1) != 1:
        yield "the weight's innermost stride is not 1"


def against_onednn(x: Tensor, weight: Tensor) -> Iterator[str]:
    """Say what speaks against oneDNN."""
    if not _has_onednn() or not torch._C._get_mkldnn_enabled():
        yield "torch has no oneDNN here, or torch.backends.mkldnn switches it off"
    if weight.dtype not in _DTYPES:
        yield f"it is taken for float32 and bfloat16, and the weight is {weight.dtype}"
    elif weight.dtype == torch.bfloat16 and not _multiplies_bfloat16():
        yield "this processor does not multiply bfloat16"
    elif weight.dtype == torch.float32:
        if _is_intel():
            yield "on processors of Intel, torch multiplies float32 by MKL, which is made for them"
        if x.numel() * weight.shape[0] < _WORTH_ONEDNN:
            yield "the call is so small that starting it costs more than it saves"
    if not weight.is_contiguous() and not weight.mT.is_contiguous():
        yield "neither the weight nor its transpose is contiguous"


def against_packing(weight: Tensor) -> Iterator[str]:
    """Say what speaks against keeping a packed copy of a weight for oneDNN."""
    if in_use() == "unpacked":
        yield "headwise.nn.projections('unpacked') or HEADWISE_PROJECTIONS=unpacked asks for none"
    if weight.is_inference():
        yield "the weight was made in inference mode, where torch does not count its changes"
    elif weight.untyped_storage().is_shared():
        yield "the weight is shared with other processes, whose changes are not seen here"


def _is_traced() -> bool:
    """Say whether torch.jit follows, or a function mode that does more than name a device."""
    if torch._C._get_tracing_state() is not None:
        return True
    if not torch._C._len_torch_function_stack():
        return False
    modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    # torch.device(…) and torch.set_default_device are function modes, too.
    return any(type(mode).__name__ != "DeviceContext" for mode in modes)


@cache
def _has_onednn() -> bool:
    return torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")


@cache
def _multiplies_bfloat16() -> bool:
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


@cache
def _is_intel() -> bool:
    described = Path("/proc/cpuinfo")
    text = described.read_text() if described.is_file() else platform.processor()
    return "GenuineIntel" in text
