"""Linear attention as a mechanism of a layer: a state in place of keys and values."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from headwise._checks import refuse_dtypes
from headwise.errors import ShapeError
from headwise.nn.arguments import check_flags
from headwise.nn.linear_call import check_layer
from headwise.nn.linear_rule import LinearRule
from headwise.nn.mechanism import AttentionCall, ChosenForm, Cost, LayerSettings, Step
from headwise.ops import FeatureMap, LinearState
from headwise.ops.linear.features import as_feature_map
from headwise.ops.linear.settle_decay import check_decay_number
from headwise.ops.softmax.selection import Selection
from headwise.ops.watchers import is_transformed, is_watched

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
            ``torch.nn.utils.parametrize``. Conversions leave it in float32 or wider. Only for
            ``Causal()``.
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
        check_flags(_NAME, normalize=normalize)
        _check_decay(decay)
        known = as_feature_map(feature_map, _NAME)
        if isinstance(feature_map, str):
            known.features(torch.zeros(1, 1, 0, 1), is_query=True, normalize=normalize)
        self.feature_map = feature_map
        self.normalize = normalize
        if isinstance(decay, Tensor) and not isinstance(decay, nn.Parameter):
            self.register_buffer("decay", decay)
        else:
            self.decay = decay

    @override
    def forward(self, call: AttentionCall, state: Any = None) -> Step:
        """Return the output, and the state after the last key, see ``headwise.nn.Mechanism``."""
        return self._rule().step(call, state)

    def state(self, call: AttentionCall) -> LinearState:
        """Return the state before the first token, zeros that take no memory."""
        return self._rule().first_state(call)

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
        return self._rule().costs(
            q_len,
            kv_len,
            q_heads=q_heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            value_dim=value_dim,
        )

    def form(self, call: AttentionCall) -> ChosenForm:
        """Say which form would run a call, and why a faster one would not."""
        return self._rule().form(call)

    def reference(self, call: AttentionCall) -> Tensor:
        """Return the output by the definition, with the weights spelled out."""
        return self._rule().step(call, None, "reference").output

    def weights(
        self, call: AttentionCall, *, rows: Selection = None, heads: Selection = None
    ) -> Tensor:
        """Return the weights that this amounts to, (batch, heads, rows, kv_len).

        Args:
            call: What is asked.
            rows: The queries wanted, see ``headwise.attention_weights``; ``None`` = all.
            heads: The query heads wanted, likewise.
        """
        return self._rule().weights(call, rows=rows, heads=heads)

    def check_layer(self, settings: LayerSettings) -> None:
        """Refuse a layer whose calls would be refused; a layer calls this when it is made."""
        check_layer(settings)

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

    def _rule(self) -> LinearRule:
        return LinearRule(self.feature_map, self.decay, self.normalize)

    @override
    def _apply(self, fn: Any, recurse: bool = True) -> "LinearAttention":
        """Move the decay, and let no conversion round it: near 1 a narrow dtype has no numbers."""
        before = self._own_decay()
        before = None if before is None else before.detach()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        after = self._own_decay()
        if before is not None and after is not None and _is_narrow(after):
            kept = after if before.is_meta else before
            after.data = kept.to(after.device, _widened(after))
        return self

    @override
    def _load_from_state_dict(self, *given: Any, **named: Any) -> None:
        super()._load_from_state_dict(*given, **named)
        loaded = self._own_decay()
        if loaded is not None and _is_narrow(loaded):
            loaded.data = loaded.to(_widened(loaded))

    def _own_decay(self) -> Tensor | None:
        """Return the decay where this module holds it, and no parametrisation does."""
        found = self._parameters.get("decay")
        return self._buffers.get("decay") if found is None else found


def _is_narrow(decay: Tensor) -> bool:
    return decay.is_floating_point() and decay.dtype != _widened(decay)


def _widened(decay: Tensor) -> torch.dtype:
    return torch.promote_types(decay.dtype, torch.float32)


def _check_decay(decay: float | Tensor | None) -> None:
    if not isinstance(decay, Tensor):
        if decay is not None:
            check_decay_number(_NAME, decay)
        return
    if not decay.is_floating_point():
        raise refuse_dtypes(
            _NAME, "decay must be floating-point", "convert it with .float()", decay=decay
        )
    if not (is_watched(decay) or is_transformed() or decay.is_meta):
        for number in decay.detach().flatten().tolist():
            check_decay_number(_NAME, number)
