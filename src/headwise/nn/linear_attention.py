"""Linear attention as a mechanism of a layer: a state in place of keys and values."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from headwise.errors import ShapeError
from headwise.nn.linear_call import asks_for_causality, key_padding, refuse_the_rest
from headwise.nn.linear_cost import Sizes, costs_of
from headwise.nn.mechanism import AttentionCall, Cost, Step
from headwise.ops import FeatureMap, LinearState, linear_attend, linear_attention_weights
from headwise.ops.linear.features import as_feature_map
from headwise.ops.linear.settle_decay import check_decay_number
from headwise.ops.linear.state import work_dtype
from headwise.ops.softmax.selection import Selection

_NAME = "LinearAttention"


class LinearAttention(nn.Module):
    """Weigh values by products of features of queries and keys; pass it as ``mechanism=``.

    The layer's pattern must be none (every token sees every other) or ``Causal()``; padding goes
    into ``kv_mask``. With a cache a layer keeps a state whose size does not grow, in place of keys
    and values. See ``headwise.linear_attend`` for what is computed.

    Args:
        feature_map: A name such as ``"elu"``, an object with a method ``features`` such as
            ``headwise.nn.RandomFeatures``, or a module or function on the last dimension. Modules
            become part of this one.
        decay: What is left of a token one step later, above 0 and at most 1: a number, or a tensor
            (kv_heads,), kept as a buffer. An ``nn.Parameter`` is trained as it is, and a call
            refuses it once it leaves that range: hold it there with
            ``torch.nn.utils.parametrize``. Only for ``Causal()``.
        normalize: Whether the weights of a query are divided by their sum.

    Raises:
        ValueError: A name that is none, a decay out of range, a map that cannot be normalised.
        TypeError: A feature map or decay that is none.

    Example:
        >>> import torch, headwise as hw
        >>> layer = hw.MultiHeadAttention(
        ...     16, 4, pattern=hw.Causal(), mechanism=hw.nn.LinearAttention("elu")
        ... )
        >>> layer(torch.randn(2, 5, 16)).shape
        torch.Size([2, 5, 16])
    """

    decay: float | Tensor | None

    def __init__(
        self,
        feature_map: str | FeatureMap | Callable[[Tensor], Tensor],
        *,
        decay: float | Tensor | None = None,
        normalize: bool = True,
    ) -> None:
        super().__init__()
        known = as_feature_map(feature_map, _NAME)
        if isinstance(feature_map, str):
            known.features(torch.zeros(1, 1, 0, 1), is_query=True, normalize=normalize)
        self.feature_map = feature_map
        self.normalize = normalize
        if isinstance(decay, Tensor) and not isinstance(decay, nn.Parameter):
            self.register_buffer("decay", decay)
        else:
            if decay is not None and not isinstance(decay, Tensor):
                check_decay_number(_NAME, decay)
            self.decay = decay

    @override
    def forward(self, call: AttentionCall, state: Any = None) -> Step:
        """Return the output, and the state after the last key, see ``headwise.nn.Mechanism``."""
        return self._step(call, state, "auto")

    def state(self, call: AttentionCall) -> LinearState:
        """Return the state before the first token, zeros that take no memory."""
        found = as_feature_map(self.feature_map, _NAME).features(
            call.key[..., :0, :], is_query=False, normalize=self.normalize
        )
        heads, width = found.values.shape[:-2], found.values.shape[-1]
        zero = call.value.new_zeros((), dtype=work_dtype(call.value))
        return LinearState(
            zero.expand(*heads, width, call.value.shape[-1]),
            zero.expand(*heads, width),
            (zero if found.log_gain is None else zero - float("inf")).expand(heads),
        )

    def cost(
        self, q_len: int, kv_len: int, *, q_heads: int, kv_heads: int, head_dim: int, value_dim: int
    ) -> Cost:
        """Say what one sample takes where later tokens are hidden; ``costs`` has all forms."""
        found = self.costs(
            q_len,
            kv_len,
            q_heads=q_heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            value_dim=value_dim,
        )
        return found["native"]

    def costs(
        self, q_len: int, kv_len: int, *, q_heads: int, kv_heads: int, head_dim: int, value_dim: int
    ) -> dict[str, Cost]:
        """Say what one sample takes in each form that ``linear_attend`` has as a backend.

        ``whole`` is a call in which every token sees every other.
        """
        features, flops, itemsize = self._measured(head_dim)
        return costs_of(
            Sizes(q_len, kv_len, q_heads, kv_heads, head_dim, value_dim, features, flops, itemsize)
        )

    def reference(self, call: AttentionCall) -> Tensor:
        """Return the output by the definition, with the weights spelled out."""
        return self._step(call, None, "reference").output

    def weights(
        self, call: AttentionCall, *, rows: Selection = None, heads: Selection = None
    ) -> Tensor:
        """Return the weights that this amounts to, (batch, heads, rows, kv_len).

        Args:
            call: What is asked.
            rows: The queries wanted, see ``headwise.attention_weights``; ``None`` = all.
            heads: The query heads wanted, likewise.
        """
        refuse_the_rest(call)
        return linear_attention_weights(
            call.query,
            call.key,
            rows=rows,
            heads=heads,
            **self._keywords(call, None),
        )

    def fit(self, *, kv_heads: int, **sizes: int) -> None:
        """Take the sizes of a layer, and tell them a feature map that asks for them likewise."""
        decay = self.decay
        if isinstance(decay, Tensor) and decay.shape not in ((), (kv_heads,)):
            raise ShapeError(
                f"LinearAttention: decay must hold one number for each of the layer's {kv_heads} "
                f"key/value heads, got the shape {tuple(decay.shape)}\n"
                "  hint: give a tensor of shape (kv_heads,), or one number"
            )
        fit = getattr(self.feature_map, "fit", None)
        if isinstance(self.feature_map, FeatureMap) and callable(fit):
            fit(kv_heads=kv_heads, **sizes)

    @override
    def extra_repr(self) -> str:
        shown = [] if isinstance(self.feature_map, nn.Module) else [repr(self.feature_map)]
        if self.decay is not None:
            decay = self.decay
            shown.append(f"decay={tuple(decay.shape) if isinstance(decay, Tensor) else decay}")
        return ", ".join(shown if self.normalize else [*shown, "normalize=False"])

    def _step(self, call: AttentionCall, state: LinearState | None, backend: str) -> Step:
        refuse_the_rest(call)
        found = linear_attend(
            call.query,
            call.key,
            call.value,
            state=state,
            backend=backend,
            **self._keywords(call, state),
        )
        return Step(found.output, found.state)

    def _keywords(self, call: AttentionCall, state: LinearState | None) -> dict[str, Any]:
        causal = asks_for_causality(call, carried=state is not None)
        if self.decay is not None and not causal:
            raise ValueError(
                "LinearAttention: decay is for layers that hide later tokens, and this call has no "
                "pattern\n  hint: make the layer with pattern=Causal(), or leave decay out"
            )
        return {
            "feature_map": self.feature_map,
            "causal": causal,
            "kv_mask": key_padding(call, carried=state is not None),
            "decay": self.decay,
            "normalize": self.normalize,
        }

    def _measured(self, head_dim: int) -> tuple[int, int, int]:
        """Return the features of a token, the operations that make them, and bytes of a number."""
        from torch.utils.flop_counter import FlopCounterMode

        own = next(iter(self.parameters()), None)
        dtype = torch.get_default_dtype() if own is None else own.dtype
        token = torch.zeros(
            1, 1, 1, head_dim, dtype=dtype, device=None if own is None else own.device
        )
        with torch.no_grad(), torch.random.fork_rng([]), FlopCounterMode(display=False) as counted:
            found = as_feature_map(self.feature_map, _NAME).features(
                token, is_query=False, normalize=self.normalize
            )
        return found.values.shape[-1], counted.get_total_flops(), dtype.itemsize
