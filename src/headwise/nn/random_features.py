"""Positive random features, whose products are on average the weights of softmax attention."""

from typing import Any, overload

import torch
from torch import Tensor, nn
from typing_extensions import override

from headwise._checks import refuse_dtypes, refuse_shapes
from headwise.errors import ShapeError
from headwise.nn.linear_call import check_layer
from headwise.nn.linear_rule import LinearRule
from headwise.nn.mechanism import AttentionCall, ChosenForm, Cost, LayerSettings, Step
from headwise.nn.random_checks import check_drawable, check_seed, check_settings
from headwise.ops import LinearState
from headwise.ops.linear.directions import draw_directions, following
from headwise.ops.linear.features import Features
from headwise.ops.linear.positive_features import positive_features
from headwise.ops.softmax.selection import Selection


class RandomFeatures(nn.Module):
    """Map queries and keys to positive random features (FAVOR+, Choromanski et al., 2021).

    Computes, with ``count`` random directions ``w`` and ``y = x * sqrt(scale)``::

        features(x) = exp(w @ y - |y|² / 2) / sqrt(count)

    On average over the directions ``features(q) @ features(k) = exp(scale * q @ k)``, so linear
    attention with this map estimates softmax attention; the error falls as ``1 / sqrt(count)`` and
    grows fast with ``|q|`` and ``|k|``. Pass the object as ``feature_map=`` of ``linear_attend``
    and ``LinearAttention``, or as ``mechanism=`` of a layer, which is the same as
    ``LinearAttention(RandomFeatures(…))``.

    Where weights are divided by their sum, nothing overflows and nobody else is looked at: the
    largest exponent of a query cancels, and that of a key goes into its ``log_gain``. No row's
    weights vanish either, for features are at least 2⁻⁶³ of their token's largest one (2⁻²⁴ in
    float16, 2⁻⁵¹¹ in float64), which shows only where there is nothing else. Features are computed
    in float32 or wider and returned in the dtype of ``x``.

    The directions come from ``seed`` alone, and its default is the same for all objects: layers
    that are made without one have the same directions, so their errors are alike. Give every layer
    of a model a seed of its own, ``seed=layer``.

    Args:
        count: Features of a token.
        head_dim: Width of queries and keys; ``None`` = that of the first input, or of the layer
            that takes the object.
        seed: Where the directions are drawn from; the global generator is left alone. Layers
            should have different ones.
        orthogonal: Whether directions come in blocks at right angles, which lowers the error.
        scale: Multiplier of the scores that are estimated; ``None`` means ``head_dim ** -0.5``.
        kernel: ``"softmax"`` as above; ``"hyperbolic"``: every direction and its opposite, an even
            ``count`` of both, a smaller error for small inputs; ``"relu"``: the generalised
            attention of the paper, ``(relu(w @ y) + 0.001) / sqrt(count)``, which estimates no
            softmax.
        device: Where the directions are kept.

    Attributes:
        projection: The directions, (count, head_dim), half as many for ``"hyperbolic"``; ``None``
            until the width is known. It stays float32 when the module is converted.
        seed: What they were drawn from, as a tensor. Both are in the state dict.

    Raises:
        ShapeError: A count or width that makes no sense.
        ValueError: A seed, scale or kernel that makes none.

    Example:
        >>> import torch, headwise as hw
        >>> layer = hw.MultiHeadAttention(16, 4, mechanism=hw.nn.RandomFeatures(32))
        >>> layer(torch.randn(2, 5, 16)).shape
        torch.Size([2, 5, 16])
    """

    projection: Tensor | None
    seed: Tensor

    def __init__(
        self,
        count: int,
        head_dim: int | None = None,
        *,
        seed: int = 0,
        orthogonal: bool = True,
        scale: float | None = None,
        kernel: str = "softmax",
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        check_settings(count, head_dim, scale, kernel)
        check_seed(seed)
        self.count, self.orthogonal, self.scale, self.kernel = count, orthogonal, scale, kernel
        # Beside the buffer, whose number is not to be had on the meta device.
        self._kept_seed = seed
        self.register_buffer("seed", torch.tensor(seed, device="cpu"))
        self.register_buffer("projection", None)
        if head_dim is not None:
            self._draw(head_dim, seed)
        self.to(torch.get_default_device() if device is None else device)

    @property
    def head_dim(self) -> int | None:
        """Width of queries and keys; ``None`` while it is not known."""
        return None if self.projection is None else self.projection.shape[1]

    def redraw(self, seed: int | None = None) -> None:
        """Draw other directions, in place.

        A state that was carried from earlier tokens has no meaning for the new ones.

        Args:
            seed: What to draw them from; ``None`` = a seed that follows from the one before, so
                that the same sequence comes from the same first seed, also after loading.
        """
        if seed is None:
            seed = following(self._seed_number())
        check_seed(seed)
        self._kept_seed = seed
        self.seed.fill_(seed)
        if self.projection is not None:
            self.projection.copy_(self._directions(self.projection.shape[1], seed))

    def reset_parameters(self) -> None:
        """Draw the directions of the present seed again, in memory that holds something else.

        ``to_empty`` of a module on the meta device has done so already.
        """
        self.redraw(self._kept_seed)

    def fit(self, *, head_dim: int, **_: int) -> None:
        """Take the width of a layer's queries and keys; a layer calls this when it is made."""
        if self.projection is None:
            self._draw(head_dim, self._seed_number())
        elif self.projection.shape[1] != head_dim:
            raise ShapeError(
                f"RandomFeatures: head_dim must be that of the layer, got "
                f"{self.projection.shape[1]} and {head_dim}\n"
                "  hint: leave head_dim out, and give each layer an object of its own"
            )

    def check_layer(self, settings: LayerSettings) -> None:
        """Refuse a layer whose calls would be refused; a layer calls this when it is made."""
        check_layer(settings)

    def features(self, x: Tensor, *, is_query: bool, normalize: bool) -> Features:
        """Return the features of queries or keys, see ``headwise.ops.FeatureMap``."""
        return positive_features(
            x,
            self._directions_for(x),
            kernel=self.kernel,
            scale=x.shape[-1] ** -0.5 if self.scale is None else self.scale,
            is_query=is_query,
            normalize=normalize,
        )

    @overload
    def forward(self, x: Tensor) -> Tensor: ...
    @overload
    def forward(self, x: AttentionCall, state: object = None) -> Step: ...
    @override
    def forward(self, x: Tensor | AttentionCall, state: Any = None) -> Tensor | Step:
        """Return the plain features of a tensor; or, as a mechanism, the step of a call.

        Args:
            x: (…, head_dim), or what a layer asks.
            state: The state of a call, see ``headwise.nn.Mechanism``.
        """
        if isinstance(x, Tensor):
            return self.features(x, is_query=True, normalize=False).values
        return self._rule().step(x, state)

    def state(self, call: AttentionCall) -> LinearState:
        """Return the state before the first token, see ``headwise.nn.Mechanism``."""
        return self._rule().first_state(call)

    def cost(
        self, q_len: int, kv_len: int, *, q_heads: int, kv_heads: int, head_dim: int, value_dim: int
    ) -> Cost:
        """Say what one sample takes, see ``headwise.nn.Mechanism``."""
        found = self.costs(
            q_len,
            kv_len,
            q_heads=q_heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            value_dim=value_dim,
        )
        return found["native"]

    def costs(self, q_len: int, kv_len: int, **sizes: int) -> dict[str, Cost]:
        """Say what one sample takes in each form, see ``headwise.nn.LinearAttention``."""
        return self._rule().costs(q_len, kv_len, **sizes)

    def form(self, call: AttentionCall) -> ChosenForm:
        """Say which form would run a call, see ``headwise.nn.LinearAttention``."""
        return self._rule().form(call)

    def reference(self, call: AttentionCall) -> Tensor:
        """Return the output by the definition of linear attention over these features."""
        return self._rule().step(call, None, "reference").output

    def weights(
        self, call: AttentionCall, *, rows: Selection = None, heads: Selection = None
    ) -> Tensor:
        """Return the weights that this amounts to, as ``LinearAttention.weights`` does."""
        return self._rule().weights(call, rows=rows, heads=heads)

    @override
    def extra_repr(self) -> str:
        shown = f"{self.count}, head_dim={self.head_dim}, orthogonal={self.orthogonal}"
        shown += f", seed={self._seed_number()}"
        shown += "" if self.scale is None else f", scale={self.scale}"
        return shown if self.kernel == "softmax" else f"{shown}, kernel={self.kernel!r}"

    def _rule(self) -> LinearRule:
        return LinearRule(self, None, True)

    def _directions_for(self, x: Tensor) -> Tensor:
        if not x.is_floating_point():
            raise refuse_dtypes(
                "RandomFeatures",
                "inputs must be floating-point numbers",
                "convert them with .to(torch.float32)",
                x=x,
            )
        if x.is_meta:
            return torch.empty(self._rows, x.shape[-1], device="meta")
        if self.projection is None:
            check_drawable(x)
            self._draw(x.shape[-1], self._seed_number(), x.device)
        directions = self.projection
        assert directions is not None
        if directions.shape[1] != x.shape[-1]:
            raise refuse_shapes(
                "RandomFeatures",
                f"the last dimension must be head_dim={directions.shape[1]}",
                "give each head_dim an object of its own",
                x=x,
            )
        return directions

    def _seed_number(self) -> int:
        return self._kept_seed if self.seed.is_meta else int(self.seed)

    def _draw(self, head_dim: int, seed: int, device: torch.device | None = None) -> None:
        """Make the buffer, which must be an ordinary tensor also where no gradient is wanted."""
        with torch.inference_mode(False):
            drawn = self._directions(head_dim, seed)
            self.projection = drawn.to(self.seed.device if device is None else device)

    def _directions(self, head_dim: int, seed: int) -> Tensor:
        return draw_directions(self._rows, head_dim, seed=seed, orthogonal=self.orthogonal)

    @property
    def _rows(self) -> int:
        return self.count // 2 if self.kernel == "hyperbolic" else self.count

    @override
    def _apply(self, fn: Any, recurse: bool = True) -> "RandomFeatures":
        """Move the buffers, and keep the numbers of the directions whatever the dtype.

        What comes from the meta device has no numbers yet, so they are drawn.
        """
        before, was_meta = self.projection, self.seed.is_meta
        self._kept_seed = self._seed_number()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        after = self.projection
        if before is not None and after is not None and after.dtype != before.dtype:
            kept = after if before.is_meta else before
            self.projection = kept.to(after.device, before.dtype)
        if was_meta and not self.seed.is_meta:
            self.reset_parameters()
        return self

    @override
    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *rest: Any, **named: Any
    ) -> None:
        """Make room for directions whose width was not known yet, then load as usual."""
        stored = state_dict.get(f"{prefix}projection")
        if self.projection is None and isinstance(stored, Tensor) and stored.ndim == 2:
            room = torch.zeros(self._rows, stored.shape[1], device=self.seed.device)
            self.projection = room.float()
        super()._load_from_state_dict(state_dict, prefix, *rest, **named)
        if self.projection is not None:
            self.projection = self.projection.float()
        self._kept_seed = self._seed_number()
