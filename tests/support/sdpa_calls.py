"""Calls of torch's attention, with and without the patch, and what they give."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

import headwise as hw
from headwise.ops import tally


class Asked(NamedTuple):
    """The sizes of one call: leading dimensions of query, key and value, a mask, the rest."""

    q_lead: tuple[int, ...]
    k_lead: tuple[int, ...]
    v_lead: tuple[int, ...]
    mask: tuple[int, ...] | None = None
    more: dict[str, Any] = {}  # noqa: RUF012
    lengths: tuple[int, int] = (5, 7)


def tensors(asked: Asked, dtype: torch.dtype, kind: str = "bool") -> list[Any]:
    """Draw query, key, value and mask, of which floating-point ones want gradients."""
    q_len, kv_len = asked.lengths
    found = [
        torch.randn(*asked.q_lead, q_len, 11, dtype=dtype),
        torch.randn(*asked.k_lead, kv_len, 11, dtype=dtype),
        torch.randn(*asked.v_lead, kv_len, 13, dtype=dtype),
    ]
    if asked.mask is not None:
        closed = torch.rand(asked.mask) < 0.3
        if asked.mask[-2] > 1:
            closed[..., 0, :] = True
        numbers = torch.randn(asked.mask, dtype=dtype).masked_fill(closed, float("-inf"))
        found.append(~closed if kind == "bool" else numbers)
    return [t.requires_grad_() if t.is_floating_point() else t for t in found]


def leaves(given: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Return copies in another dtype that want gradients, too."""
    return [t.detach().to(dtype).requires_grad_() if t.is_floating_point() else t for t in given]


def results(given: list[Any], **more: Any) -> list[Tensor]:
    """Return the output of ``F.scaled_dot_product_attention`` and all gradients."""
    output = functional.scaled_dot_product_attention(*given, **more)
    wanted = [t for t in given if t.requires_grad]
    push = torch.linspace(-1, 1, output.numel(), dtype=torch.float64).view(output.shape)
    return [output, *torch.autograd.grad(output, wanted, push.to(output.dtype))]


def taken(run: Callable[[], Any]) -> int:
    """Return how many calls headwise computes while ``run`` runs with the patch on."""
    with tally() as counted, hw.patch.sdpa():
        run()
    return counted["native"]
