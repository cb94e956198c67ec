"""The function that stands in for torch's ``scaled_dot_product_attention``."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Proxy
from torch.overrides import TorchFunctionMode, handle_torch_function, has_torch_function
from typing_extensions import override

from headwise.patch.given import Given, as_computed
from headwise.patch.refusals import refusals
from headwise.patch.second import Rules, derivable
from headwise.patch.state import State
from headwise.patch.translate import translate
from headwise.patterns.content import PLAIN

torchs: Callable[..., Tensor] = torch._C._nn.scaled_dot_product_attention


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute torch's attention by ``headwise.attend`` where that can be, and by torch elsewhere.

    It stands in torch's modules while ``headwise.patch.sdpa`` is on; arguments, result and errors
    are those of ``torch.nn.functional.scaled_dot_product_attention``.
    """
    given = Given(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if not State.on:
        return _torchs(given)
    if torch.compiler.is_compiling() or not has_torch_function(given[:4]):
        return _computed(given)
    # What is traced stays free of us, and calls torch by name.
    if any(isinstance(argument, Proxy) for argument in given[:4]):
        return _shown(torchs, given)
    return _seen(given)


class EarlierNames(TorchFunctionMode):
    """Brings calls by names that were imported before the patch, and so hold torch's function."""

    @override
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is torchs:
            func = scaled_dot_product_attention
        return func(*args, **kwargs) if kwargs else func(*args)


def _computed(given: Given) -> Tensor:
    """Compute a call that nobody else is to see."""
    cast = as_computed(given)
    if refusals(cast):
        return _torchs(given)
    call = translate(cast)
    rules = Rules(call.pattern, cast.scale, cast.dropout_p)
    output = derivable(rules, call.query, call.key, call.value, call.bias)
    return output if call.lead is None else output.reshape(*call.lead, *output.shape[-2:])


def _seen(given: Given) -> Tensor:
    """Show a call to torch's function modes, and to tensors that bring functions of their own."""
    if _is_ours_alone() and all(tensor is None or type(tensor) in PLAIN for tensor in given[:4]):
        with torch._C.DisableTorchFunction():
            return _computed(given)
    return _shown(scaled_dot_product_attention, given)


def _shown(function: Callable[..., Tensor], given: Given) -> Tensor:
    more = {"scale": given.scale, "enable_gqa": given.enable_gqa}
    found: Tensor = handle_torch_function(function, given[:4], *given[:6], **more)
    return found


def _is_ours_alone() -> bool:
    """Say whether the only function mode is the one that brings calls here anyway."""
    if torch._C._len_torch_function_stack() != 1:
        return False
    return isinstance(torch._C._get_function_stack_at(0), EarlierNames)


def _torchs(given: Given) -> Tensor:
    return torchs(*given[:6], scale=given.scale, enable_gqa=given.enable_gqa)
