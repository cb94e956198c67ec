"""The feed-forward part of a transformer block, plain and gated."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from headwise._checks import refuse_shapes
from headwise._dims import Hidden
from headwise._forks import alone_after_fork
from headwise.nn.arguments import check_counts, check_dropout, check_flags
from headwise.nn.projection import project
from headwise.ops.projection.api import ACTIVATIONS

_BETWEEN = tuple(name for name in ACTIVATIONS if name != "none")


class FeedForward(nn.Module):
    """Two linear layers with an activation between them, for every token alone.

    Plain, ``W_down(act(W_up(x)))``, as in "Attention Is All You Need" (Vaswani et al., 2017).
    Gated, ``W_down(act(W_gate(x)) * W_up(x))``, as in "GLU Variants Improve Transformer" (Shazeer,
    2020): GEGLU with ``"gelu"``, SwiGLU with ``"silu"``, ReGLU with ``"relu"``.

    Args:
        d_model: Width of the input and of the output.
        hidden_dim: Inner width; ``None`` = ``4 * d_model``. A gated part has three matrices, so
            two thirds of that give it as many parameters.
        activation: ``"relu"``, ``"gelu"`` (by the error function), ``"gelu_tanh"`` (its
            approximation, which GPT-2 and T5 1.1 use), or ``"silu"``.
        gated: Whether a third matrix ``W_gate`` scales what ``W_up`` makes.
        bias: Whether the linear layers have a bias.
        dropout: Share of inner numbers set to zero in training.
        device: Where the parameters are made.
        dtype: Their dtype.

    Raises:
        ShapeError: Sizes that are no ints of at least 1.
        ValueError: An activation of another name, or a dropout that is no share.
        TypeError: A flag that is neither ``True`` nor ``False``.

    Example:
        >>> import torch, headwise as hw
        >>> part = hw.nn.FeedForward(16, 44, activation="silu", gated=True, bias=False)
        >>> part(torch.randn(2, 5, 16)).shape
        torch.Size([2, 5, 16])
    """

    def __init__(
        self,
        d_model: int,
        hidden_dim: int | None = None,
        *,
        activation: str = "gelu",
        gated: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_counts("FeedForward", d_model=d_model, hidden_dim=hidden_dim)
        if activation not in _BETWEEN:
            raise ValueError(
                f"FeedForward: activation must be one of {', '.join(_BETWEEN)}, "
                f"got {activation!r}\n"
                '  hint: "gelu" is the exact form, "gelu_tanh" its approximation'
            )
        check_flags("FeedForward", gated=gated, bias=bias)
        check_dropout("FeedForward", dropout)
        self.d_model = d_model
        self.hidden_dim = 4 * d_model if hidden_dim is None else hidden_dim
        self.activation = activation
        self.dropout = dropout

        made: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        self.W_gate = nn.Linear(d_model, self.hidden_dim, **made) if gated else None
        self.W_up = nn.Linear(d_model, self.hidden_dim, **made)
        self.W_down = nn.Linear(self.hidden_dim, d_model, **made)

    @alone_after_fork
    def forward(self, x: Hidden) -> Hidden:
        """Map (…, length, d_model) to the same.

        In inference the layers take the fastest way, see ``headwise.nn.projections``; hooks,
        adapters and parametrisations on them always run.

        Raises:
            ShapeError: An input of another width.
        """
        if x.shape[-1:] != (self.d_model,):
            raise refuse_shapes(
                "FeedForward",
                f"the last dimension of x must be d_model = {self.d_model}, got {tuple(x.shape)}",
                "x is (batch, length, d_model), as the attention before it returns it",
                x=x,
            )
        if self.W_gate is None:
            hidden = project(self.W_up, x, self.activation)
        else:
            hidden = project(self.W_gate, x, self.activation) * project(self.W_up, x)
        return project(self.W_down, functional.dropout(hidden, self.dropout, self.training))

    def extra_repr(self) -> str:
        """Return what the linear layers do not show."""
        return f"activation={self.activation!r}, dropout={self.dropout}"
