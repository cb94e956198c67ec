"""Softmax attention with keys beside those of the call, as torch's own layer can add them."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from headwise._dims import Output
from headwise.nn.mechanism import AttentionCall, Cost, Step
from headwise.ops import Attended, attend, attend_with_lse, merge
from headwise.ops.softmax.settle_bias import Bias
from headwise.patterns import Dense
from headwise.positions import Alibi


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
        query, key, value = call.query, call.key, call.value
        sinks = self._sinks(call)
        if self.bias_k is None or self.bias_v is None:
            named = call.keywords() | {"sinks": sinks}
            return Step(attend(query, key, value, call.allowed, **named), None)
        named = call.keywords() | {"sinks": None}
        found = attend_with_lse(query, key, value, call.allowed, **named)
        part = _one_key(call, self.bias_k, self.bias_v, sinks, found.lse.dtype)
        return Step(merge([found, part]).output, None)

    def state(self, call: AttentionCall) -> None:
        """Return ``None``: all keys are needed in every call."""
        return

    def cost(
        self, q_len: int, kv_len: int, *, q_heads: int, kv_heads: int, head_dim: int, value_dim: int
    ) -> Cost:
        """Say what one sample takes; see ``headwise.nn.Mechanism``.

        Bytes are counted in the dtype of the learned key. Without one they are counted in torch's
        default dtype, for sizes do not say theirs.
        """
        keys = kv_len + int(self.bias_k is not None) + int(self.zero)
        size = (torch.get_default_dtype() if self.bias_k is None else self.bias_k.dtype).itemsize
        numbers = (q_heads * q_len + kv_heads * keys) * (head_dim + value_dim)
        flops = 2 * q_heads * q_len * keys * (head_dim + value_dim)
        return Cost(flops, numbers * size, "O(q_len · kv_len)")

    def reference(self, call: AttentionCall) -> Output:
        """Return the output by the definition: with the keys at the end of all others."""
        keys, values = [call.key], [call.value]
        batch, kv_heads, kv_len, _ = call.key.shape
        if self.bias_k is not None and self.bias_v is not None:
            keys.append(self.bias_k.to(call.key).unsqueeze(1).expand(batch, -1, -1, -1))
            values.append(self.bias_v.to(call.value).unsqueeze(1).expand(batch, -1, -1, -1))
        if self.zero:
            keys.append(call.key.new_zeros(batch, kv_heads, 1, call.key.shape[-1]))
            values.append(call.value.new_zeros(batch, kv_heads, 1, call.value.shape[-1]))
        count = len(keys) - 1
        bias, allowed = _spelled_bias(call), call.allowed
        if allowed is not None:
            spelled = allowed.dense(call.query.shape[2], kv_len, call.q_offset, call.kv_offset)
            allowed = Dense(functional.pad(spelled, (0, count), value=True))
        if bias is not None:
            bias = functional.pad(bias.expand(*bias.shape[:-1], kv_len), (0, count))
        return attend(
            call.query,
            torch.cat(keys, 2),
            torch.cat(values, 2),
            allowed,
            bias=bias,
            softcap=call.softcap,
            sinks=call.sinks,
            dropout_p=call.dropout_p,
            backend="reference",
        )

    @override
    def extra_repr(self) -> str:
        return f"learned={self.bias_k is not None}, zero={self.zero}"

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
    # A sum of products, which autocast leaves in the wide dtype; a matrix product it does not.
    scores = (query * keys.unsqueeze(-2)).sum(-1) * key.shape[1] ** -0.5
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    lse = scores if sinks is None else torch.logaddexp(scores, sinks.to(work).unsqueeze(-1))
    weights = (scores - lse).exp()
    if call.dropout_p > 0.0:
        weights = functional.dropout(weights, call.dropout_p)
    return Attended(weights.unsqueeze(-1) * values.unsqueeze(-2), lse)


def _spelled_bias(call: AttentionCall) -> Tensor | None:
    """Return what is added to each score, also where a rule of distances says it."""
    bias: Bias | None = call.bias
    if bias is None or isinstance(bias, Tensor):
        return bias
    q_len, kv_len, device = call.query.shape[2], call.key.shape[2], call.query.device
    first_key = torch.as_tensor(call.kv_offset, device=device).view(-1, 1, 1)
    first_query = first_key + kv_len - q_len
    if call.q_offset is not None:
        first_query = torch.as_tensor(call.q_offset, device=device).view(-1, 1, 1)
    places = torch.arange(q_len, device=device).unsqueeze(1), torch.arange(kv_len, device=device)
    distances = (first_query - first_key + places[0] - places[1]).unsqueeze(1)
    if isinstance(bias, Alibi):
        return -bias.slopes.to(device).view(-1, 1, 1) * distances.abs()
    return bias.weight[bias.buckets(distances[:, 0])].permute(0, 3, 1, 2)
