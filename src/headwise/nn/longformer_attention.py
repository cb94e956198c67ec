"""Attention of long documents: neighbours, and global tokens with projections of their own."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headwise._checks import is_int, refuse_shapes
from headwise._dims import Hidden, Key, Query, Value
from headwise._forks import alone_after_fork
from headwise.errors import ShapeError
from headwise.nn.arguments import check_counts, check_dropout, check_flags
from headwise.nn.chosen_tokens import ChosenTokens, chosen_tokens, flags_of
from headwise.ops import attend
from headwise.patterns import (
    Causal,
    Dense,
    Documents,
    KeyMask,
    Lengths,
    Pattern,
    PerHead,
    Window,
)
from headwise.patterns.content import Numbers
from headwise.patterns.dense import as_mask
from headwise.patterns.wording import pattern_name


class LongformerAttention(nn.Module):
    """Self-attention of "Longformer: The Long-Document Transformer" (Beltagy et al., 2020).

    A local token attends with ``W_q W_k W_v`` to its window and to all global tokens, in one
    softmax. A global token attends to all tokens with ``W_q_global W_k_global W_v_global``, in a
    softmax of its own. ``W_o`` follows both. Time and memory grow with ``length * (window + global
    tokens)``; a batch without global tokens does not use the global projections.

    In transformers ``W_q W_k W_v`` are ``self.query``, ``self.key``, ``self.value`` of its
    ``LongformerAttention``; the global ones are ``self.query_global`` and so on; ``W_o`` is
    ``output.dense``.

    Args:
        d_model: Width of the input and of the output.
        num_heads: Heads, a divisor of ``d_model``.
        window: Neighbours on both sides together, as Longformer and transformers count them:
            ``window // 2`` on each, the token itself beside them. An int, or one per head.
        dilation: Step between neighbours, in tokens; an int, or one per head.
        causal: Whether no token, global ones included, sees what comes after it. The window then
            keeps its ``window // 2`` tokens before, and nothing after.
        bias: Whether the projections have a bias.
        dropout: Share of attention weights set to zero in training.
        device: Where the parameters are made.
        dtype: Their dtype.

    Raises:
        ShapeError: Sizes that are no ints of at least 1, heads that do not divide, or lists for
            another number of heads.
        TypeError: A flag that is neither ``True`` nor ``False``.
        ValueError: A dropout that is no share.

    Example:
        >>> import torch, headwise as hw
        >>> layer = hw.nn.LongformerAttention(16, 4, window=6)
        >>> layer(torch.randn(2, 50, 16), global_tokens=[0]).shape
        torch.Size([2, 50, 16])
    """

    def __init__(  # noqa: PLR0913
        self,
        d_model: int,
        num_heads: int,
        window: int | Sequence[int],
        *,
        dilation: int | Sequence[int] = 1,
        causal: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_counts("LongformerAttention", d_model=d_model, num_heads=num_heads)
        if d_model % num_heads:
            raise ShapeError(
                "LongformerAttention: num_heads must divide d_model, "
                f"got {num_heads} and {d_model}\n  hint: choose another number of heads"
            )
        check_flags("LongformerAttention", causal=causal, bias=bias)
        check_dropout("LongformerAttention", dropout)
        self.d_model = d_model
        self.num_heads = num_heads
        self.causal = causal
        self.dropout = dropout
        self.pattern = _neighbours(num_heads, window, dilation)

        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.W_q = nn.Linear(d_model, d_model, bias, **made)
        self.W_k = nn.Linear(d_model, d_model, bias, **made)
        self.W_v = nn.Linear(d_model, d_model, bias, **made)
        self.W_o = nn.Linear(d_model, d_model, bias, **made)
        self.W_q_global = nn.Linear(d_model, d_model, bias, **made)
        self.W_k_global = nn.Linear(d_model, d_model, bias, **made)
        self.W_v_global = nn.Linear(d_model, d_model, bias, **made)

    @alone_after_fork
    def forward(
        self,
        x: Hidden,
        global_tokens: Numbers | None = None,
        *,
        kv_mask: Tensor | None = None,
    ) -> Hidden:
        """Attend and project.

        How many tokens are global decides the sizes inside, so ``torch.compile`` breaks its graph
        where it reads ``global_tokens``, and refuses with ``fullgraph=True``. Without them the
        layer compiles whole.

        Args:
            x: (batch, length, d_model); without the batch dimension it is one sample.
            global_tokens: The global tokens as ``headwise.GlobalTokens`` takes them: positions, the
                same in every sample; or booleans (length,) or (batch, length), where samples may
                choose different numbers, none at all included. ``None`` = no token is global.
            kv_mask: (batch, length) or (length,), ``True`` = real token. Padding is seen by none,
                is never global, and sees nothing: its output is what ``W_o`` makes of zeros, its
                bias, as in transformers. ``None`` = all are real.

        Returns:
            (batch, length, d_model).

        Raises:
            ShapeError: An input of another width, tokens or masks for other sizes.
            PatternError: Tokens or masks of a kind that cannot be read.
        """
        self._check_input(x)
        samples = x if x.ndim == 3 else x.unsqueeze(0)
        real = None
        if kv_mask is not None:
            real = flags_of("kv_mask", as_mask("LongformerAttention", kv_mask), samples)
        chosen = None if global_tokens is None else chosen_tokens(global_tokens, real, samples)
        output: Tensor = self.W_o(self._context(samples, chosen, real).flatten(2))
        return output if x.ndim == 3 else output.squeeze(0)

    def extra_repr(self) -> str:
        """Return what the projections do not show."""
        return (
            f"num_heads={self.num_heads}, pattern={pattern_name(self.pattern)}, "
            f"causal={self.causal}"
        )

    def _context(self, x: Tensor, chosen: ChosenTokens | None, real: Tensor | None) -> Tensor:
        """Return what every head gives every token, (batch, length, heads, dim)."""
        dropout_p = self.dropout if self.training else 0.0
        q, k, v = self._project(x, x, self.W_q, self.W_k, self.W_v)
        local = attend(q, k, v, self._local(chosen, real), dropout_p=dropout_p).transpose(1, 2)
        if chosen is None:
            return local
        places, slots = (chosen.sample, chosen.place), (chosen.sample, chosen.slot)
        asking = x.new_zeros(len(x), chosen.slots, self.d_model).index_put(slots, x[places])
        q, k, v = self._project(asking, x, self.W_q_global, self.W_k_global, self.W_v_global)
        seen = self._of_global(chosen, real)
        found = attend(q, k, v, seen, q_offset=0, dropout_p=dropout_p).transpose(1, 2)
        return local.index_put(places, found[slots])

    def _project(
        self, asking: Tensor, x: Tensor, to_q: nn.Linear, to_k: nn.Linear, to_v: nn.Linear
    ) -> tuple[Query, Key, Value]:
        """Return queries, keys and values with their heads split."""
        q, k, v = (
            made.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for made in (to_q(asking), to_k(x), to_v(x))
        )
        return q, k, v

    def _local(self, chosen: ChosenTokens | None, real: Tensor | None) -> Pattern:
        """Say what real local tokens see; the rows of all others stay empty."""
        seen = self.pattern if chosen is None else self.pattern | KeyMask(chosen.flags)
        if self.causal:
            seen = seen & Causal()
        if chosen is None:
            return seen if real is None else seen & Documents(real.long() - 1)
        local = ~chosen.flags if real is None else real & ~chosen.flags
        keys = torch.ones_like(local) if real is None else real
        return seen & Documents(local.long() - 1, keys.long() - 1)

    def _of_global(self, chosen: ChosenTokens, real: Tensor | None) -> Pattern:
        """Say what the global tokens see; a sample that has fewer leaves its last rows empty."""
        batch, length = chosen.flags.shape
        seen: Pattern = Lengths(length, chosen.flags.sum(1))
        if real is not None:
            seen = seen & KeyMask(real)
        if self.causal:
            keys = torch.arange(length, device=chosen.place.device)
            stand = chosen.place.new_zeros(batch, chosen.slots)
            stand = stand.index_put((chosen.sample, chosen.slot), chosen.place)
            seen = seen & Dense((keys <= stand.unsqueeze(-1)).unsqueeze(1))
        return seen

    def _check_input(self, x: Tensor) -> None:
        if x.ndim not in (2, 3) or x.shape[-1] != self.d_model:
            raise refuse_shapes(
                "LongformerAttention",
                f"x must be (batch, length, {self.d_model}), got {tuple(x.shape)}",
                "the last dimension is d_model; one sample may leave out the batch",
                x=x,
            )


def _neighbours(
    num_heads: int, window: int | Sequence[int], dilation: int | Sequence[int]
) -> Pattern:
    """Return the window of all heads, or of each one."""
    windows, dilations = (
        list(given) if isinstance(given, Sequence) else [given] * num_heads
        for given in (window, dilation)
    )
    sized = len(windows) == len(dilations) == num_heads
    if not sized or not all(is_int(n) and n > 0 for n in (*windows, *dilations)):
        raise ShapeError(
            f"LongformerAttention: window and dilation must be ints of at least 1, or {num_heads} "
            f"of them, got {window} and {dilation}\n"
            "  hint: the window counts the neighbours on both sides together; a list has one entry "
            "per head"
        )
    heads = [Window(w // 2, w // 2, d) for w, d in zip(windows, dilations, strict=True)]
    return heads[0] if len(set(heads)) == 1 else PerHead(heads)
