"""Low-rank attention as a mechanism of a layer."""

from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from headwise._dims import Output, Weights
from headwise.errors import CacheError, ShapeError
from headwise.nn.arguments import check_counts
from headwise.nn.length_projections import (
    ConvProjection,
    LengthProjection,
    LinearProjection,
    MeanProjection,
)
from headwise.nn.low_rank_call import Reduced, reduced, refuse_pairs, spelled
from headwise.nn.low_rank_settings import check_kind
from headwise.nn.mechanism import AttentionCall, Cost, LayerSettings, Step
from headwise.ops import attend, attention_weights
from headwise.ops.softmax.selection import Selection, pick

_NAME = "LowRank"


class LowRank(nn.Module):
    """Attend to ``rank`` projections of the tokens instead of to all; pass it as ``mechanism=``.

    The attention of Linformer (Wang et al., 2020), for encoders and cross attention; see
    ``headwise.lowrank_attend`` for what is computed. Projected tokens hold something of many
    tokens, so causal use, other patterns, masks and biases between pairs are refused; padding is
    ``kv_mask``. Softcap, sinks and dropout are about the scores and weights of projected tokens.
    One object may be the mechanism of several layers, which then share its projections.

    Args:
        rank: How many projected tokens there are.
        max_length: The most tokens that a call may bring; fewer use the first columns.
        share: Who has one projection. ``"none"``: each key/value head has its own for keys and
            for values; ``"kv"``: each head has one for both; ``"heads"``: one for keys and one for
            values, for all heads; ``"all"``: one.
        projection: ``"linear"``: numbers learned for each place. ``"conv"``: windows of
            ``max_length // rank`` tokens, summed with one learned kernel. ``"mean"``: the means of
            these windows, with nothing learned. Windows without a real token are left out of the
            softmax, and short inputs have fewer of them.
        num_kv_heads: Key/value heads of the layer; ``None`` = the layer says it.
        device: Where the parameters are made.
        dtype: Their dtype.

    Raises:
        ShapeError: Sizes below 1, or a rank that does not divide ``max_length`` into windows.
        ValueError: An unknown ``share`` or ``projection``.

    Example:
        >>> import torch, headwise as hw
        >>> layer = hw.MultiHeadAttention(32, 4, mechanism=hw.nn.LowRank(16, max_length=128))
        >>> layer(torch.randn(2, 100, 32)).shape
        torch.Size([2, 100, 32])
    """

    key_projection: LengthProjection | None
    value_projection: LengthProjection | None

    def __init__(
        self,
        rank: int,
        max_length: int,
        share: str = "none",
        *,
        projection: str = "linear",
        num_kv_heads: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_counts(_NAME, rank=rank, max_length=max_length, num_kv_heads=num_kv_heads)
        check_kind(rank, max_length, share, projection)
        self.rank, self.max_length = rank, max_length
        self.share, self.projection = share, projection
        self.num_kv_heads = num_kv_heads
        self._made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.key_projection = self.value_projection = None
        if num_kv_heads is not None or not self._per_head:
            self._make()

    def check_layer(self, settings: LayerSettings) -> None:
        """Refuse a layer whose calls would be refused; a layer calls this when it is made."""
        refuse_pairs(settings.pattern, settings.bias)

    def fit(self, *, kv_heads: int, **_: int) -> None:
        """Take the number of key/value heads of a layer; a layer calls this when it is made."""
        if not self._per_head or self.num_kv_heads == kv_heads:
            return
        if self.num_kv_heads is not None:
            raise ShapeError(
                f"{_NAME}: num_kv_heads must be that of the layer, got {self.num_kv_heads} and "
                f"{kv_heads}\n"
                '  hint: leave num_kv_heads out; layers that differ in it can share share="heads"'
            )
        self.num_kv_heads = kv_heads
        self._make()

    def reset_parameters(self) -> None:
        """Draw what is learned anew."""
        for module in (self.key_projection, self.value_projection):
            if module is not None:
                module.reset_parameters()

    @override
    def forward(self, call: AttentionCall, state: Any = None) -> Step:
        """Return the output; there is no state, see ``headwise.nn.Mechanism``."""
        return Step(_attended(call, reduced(call, *self._modules_for(call)), "auto"), None)

    def state(self, call: AttentionCall) -> None:
        """Refuse a cache, which is what asks for a state: its steps are causal use."""
        raise CacheError(
            f"{_NAME}: projected tokens hold something of all tokens, so what a step of decoding "
            "finds in a cache is not what it was trained on\n"
            "  hint: leave cache= out; for decoding use mechanism=headwise.nn.LinearAttention(…), "
            "or no mechanism and pattern=headwise.Causal() & headwise.Window(…, 0)"
        )

    def cost(
        self, q_len: int, kv_len: int, *, q_heads: int, kv_heads: int, head_dim: int, value_dim: int
    ) -> Cost:
        """Say what one sample takes; see ``headwise.nn.Mechanism``.

        Bytes are counted in the dtype of the projections, or in torch's default dtype.
        """
        width, kernel = head_dim + value_dim, self.max_length // self.rank
        linear = self.projection == "linear"
        rows = self.rank if linear else -(-kv_len // kernel)
        each = {"linear": 2 * rows, "conv": 2, "mean": 1}[self.projection]
        flops = width * (kv_heads * kv_len * each + 2 * q_heads * q_len * rows)
        copies = (1 if self.share in ("kv", "all") else 2) * (kv_heads if self._per_head else 1)
        learned = copies * {"linear": rows * kv_len, "conv": kernel, "mean": 0}[self.projection]
        numbers = width * (q_heads * q_len + kv_heads * (kv_len + 2 * rows)) + learned
        formula = "O((q_len + kv_len) · rank)" if linear else "O(q_len · rank + kv_len)"
        return Cost(flops, numbers * self._itemsize(), formula)

    def reference(self, call: AttentionCall) -> Output:
        """Return the output by the definition, with the projections spelled out as matrices."""
        kind, dtype = call.query.device.type, call.query.dtype
        work = torch.promote_types(dtype, torch.float32)
        with torch.autocast(kind, enabled=False):
            found = spelled(call, *self._modules_for(call), work)
            asked = call._replace(query=call.query.to(work))
            return _attended(asked, found, "reference").to(dtype)

    def weights(
        self, call: AttentionCall, *, rows: Selection = None, heads: Selection = None
    ) -> Weights:
        """Return the weights of tokens that this amounts to, (batch, heads, rows, kv_len).

        The softmax over projected keys times the projection of values: they may be negative, and
        rows need not sum to 1.

        Args:
            call: What is asked.
            rows: The queries wanted, see ``headwise.attention_weights``; ``None`` = all.
            heads: The query heads wanted, likewise.
        """
        for_keys, for_values = self._modules_for(call)
        found = reduced(call, for_keys, for_values)
        over = attention_weights(
            call.query,
            found.keys,
            found.shown,
            softcap=call.softcap,
            sinks=call.sinks,
            rows=rows,
            heads=heads,
        )
        matrix = for_values.matrix(call.key.shape[2], found.real).to(over)
        if matrix.ndim == 3:
            group = call.query.shape[1] // call.key.shape[1]
            chosen = pick(_NAME, "heads", heads, call.query.shape[1])
            matrix = matrix.repeat_interleave(group, 0)
            matrix = matrix if chosen is None else matrix[chosen]
        weights = torch.matmul(over, matrix)
        return weights if found.real is None else weights * found.real[:, None, None].to(weights)

    @override
    def extra_repr(self) -> str:
        return (
            f"{self.rank}, {self.max_length}, share={self.share!r}, "
            f"projection={self.projection!r}, num_kv_heads={self.num_kv_heads}"
        )

    @property
    def _per_head(self) -> bool:
        return self.projection != "mean" and self.share in ("none", "kv")

    def _make(self) -> None:
        self.key_projection = self._projection()
        if self.projection != "mean" and self.share in ("none", "heads"):
            self.value_projection = self._projection()

    def _projection(self) -> LengthProjection:
        kernel = self.max_length // self.rank
        if self.projection == "mean":
            return MeanProjection(kernel, self.max_length)
        lead = (self.num_kv_heads,) if self._per_head else ()
        sizes = (self.rank, self.max_length) if self.projection == "linear" else (kernel,)
        weight = torch.empty(*lead, *sizes, **self._made)
        if self.projection == "linear":
            return LinearProjection(weight)
        return ConvProjection(weight, self.max_length)

    def _modules_for(self, call: AttentionCall) -> tuple[LengthProjection, LengthProjection]:
        """Return the projections of keys and of values, or refuse a call they cannot serve."""
        refuse_pairs(call.pattern, call.bias)
        for_keys, kv_heads = self.key_projection, call.key.shape[1]
        if for_keys is None or (self._per_head and kv_heads != self.num_kv_heads):
            raise ShapeError(
                f"{_NAME}: each key/value head has its own projection, got num_kv_heads="
                f"{self.num_kv_heads} and {kv_heads} heads\n"
                f'  hint: make it with num_kv_heads={kv_heads}, or with share="heads"'
            )
        return for_keys, self.value_projection or for_keys

    def _itemsize(self) -> int:
        weight = next(self.parameters(), None)
        return (torch.get_default_dtype() if weight is None else weight.dtype).itemsize


def _attended(call: AttentionCall, found: Reduced, backend: str) -> Tensor:
    return attend(
        call.query,
        found.keys,
        found.values,
        found.shown,
        softcap=call.softcap,
        sinks=call.sinks,
        dropout_p=call.dropout_p,
        backend=backend,
    )
