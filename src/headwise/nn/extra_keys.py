"""Softmax attention with keys beside those of the call, as torch's own layer can add them."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from headwise._dims import Output
from headwise.nn.mechanism import AttentionCall, Cost, Step
from headwise.ops import Attended, attend, attend_with_lse, merge


class ExtraKeys(nn.Module):
    """Softmax attention with one learned key, a key of zeros, or both, that every query sees.

    They are what ``add_bias_kv`` and ``add_zero_attn`` add to ``torch.nn.MultiheadAttention``. No
    pattern, mask or causal rule hides them, and a bias is 0 there, so no query sees nothing. Keys
    and values are not copied for them: the learned key is one more part of the result, joined by
    its log-sum-exp, and the key of zeros, whose value is 0, is a sink with score 0.

    Args:
        num_kv_heads: Key/value heads of the layer.
        head_dim: Width of a head's keys.
        value_dim: Width of a head's values; ``None`` = ``head_dim``.
        learned: Whether there is a learned key with a learned value, ``bias_k`` and ``bias_v``.
        zero: Whether there is a key of zeros with a value of zeros.
        device: Where the parameters are made.
        dtype: Their dtype.

    Example:
        >>> import torch, headwise as hw
        >>> from headwise.nn.extra_keys import ExtraKeys
        >>> layer = hw.MultiHeadAttention(16, 4, mechanism=ExtraKeys(4, 4, zero=True))
        >>> layer(torch.randn(2, 5, 16)).shape
        torch.Size([2, 5, 16])
    """

    def __init__(
        self,
        num_kv_heads: int,
        head_dim: int,
        value_dim: int | None = None,
        *,
        learned: bool = True,
        zero: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.zero = zero
        self.bias_k: nn.Parameter | None = None
        self.bias_v: nn.Parameter | None = None
        if learned:
            made: dict[str, Any] = {"device": device, "dtype": dtype}
            width = head_dim if value_dim is None else value_dim
            self.bias_k = nn.Parameter(torch.empty(num_kv_heads, head_dim, **made))
            self.bias_v = nn.Parameter(torch.empty(num_kv_heads, width, **made))
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the learned key and its value anew."""
        for parameter in self.parameters():
            nn.init.xavier_normal_(parameter)

    @override
    def forward(self, call: AttentionCall, state: Any = None) -> Step:
        return Step(self._attended(call, "auto"), None)

    def state(self, call: AttentionCall) -> None:
        """Return ``None``: all keys are needed in every call."""
        return

    def cost(
        self, q_len: int, kv_len: int, *, q_heads: int, kv_heads: int, head_dim: int, value_dim: int
    ) -> Cost:
        """Say what one sample takes; see ``headwise.nn.Mechanism``."""
        keys = kv_len + int(self.bias_k is not None) + int(self.zero)
        size = (torch.get_default_dtype() if self.bias_k is None else self.bias_k.dtype).itemsize
        numbers = (q_heads * q_len + kv_heads * keys) * (head_dim + value_dim)
        flops = 2 * q_heads * q_len * keys * (head_dim + value_dim)
        return Cost(flops, numbers * size, "O(q_len · kv_len)")

    def reference(self, call: AttentionCall) -> Output:
        """Return the output by the definition."""
        return self._attended(call, "reference")

    @override
    def extra_repr(self) -> str:
        return f"learned={self.bias_k is not None}, zero={self.zero}"

    def _attended(self, call: AttentionCall, backend: str) -> Output:
        sinks = self._sinks(call)
        settings: dict[str, Any] = {
            "bias": call.bias,
            "softcap": call.softcap,
            "dropout_p": call.dropout_p,
            "q_offset": call.q_offset,
            "kv_offset": call.kv_offset,
            "backend": backend,
        }
        query, key, value = call.query, call.key, call.value
        if self.bias_k is None or self.bias_v is None:
            return attend(query, key, value, call.allowed, sinks=sinks, **settings)
        found = attend_with_lse(query, key, value, call.allowed, **settings)
        with torch.autocast(query.device.type, enabled=False):
            part = _one_key(call, self.bias_k, self.bias_v, sinks, found.lse.dtype)
        return merge([found, part]).output

    def _sinks(self, call: AttentionCall) -> Tensor | None:
        """Return the score of each head's sinks, that of the key of zeros among them."""
        if not self.zero:
            return call.sinks
        zeros = call.query.new_zeros(call.query.shape[-3], dtype=torch.float32)
        return zeros if call.sinks is None else torch.logaddexp(call.sinks.to(zeros.dtype), zeros)


def _one_key(
    call: AttentionCall, key: Tensor, value: Tensor, sinks: Tensor | None, work: torch.dtype
) -> Attended:
    """Return the result over the learned key and the sinks alone, which no query is closed to."""
    query = call.query.to(work)
    group = query.shape[-3] // key.shape[0]
    keys, values = (t.to(work).repeat_interleave(group, 0) for t in (key, value))
    scores = (query @ keys.unsqueeze(-1)).squeeze(-1) * key.shape[1] ** -0.5
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    lse = scores if sinks is None else torch.logaddexp(scores, sinks.to(work).unsqueeze(-1))
    weights = (scores - lse).exp()
    if call.dropout_p > 0.0:
        weights = functional.dropout(weights, call.dropout_p)
    return Attended(weights.unsqueeze(-1) * values.unsqueeze(-2), lse)
