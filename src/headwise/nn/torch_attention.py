"""Attention behind the interface of torch's own layer."""

from copy import copy
from functools import partial
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.module import _WrappedHook
from torch.nn.utils import parametrize
from typing_extensions import override

from headwise.nn.projection import project
from headwise.nn.torch_context import seen_pairs, weighed
from headwise.nn.torch_inputs import check_inputs
from headwise.nn.torch_masks import Sizes, read_masks
from headwise.nn.torch_nested import nested, padded
from headwise.ops import attend, attention_weights
from headwise.ops.projection import linear

_NAME = "TorchMultiheadAttention"


class TorchMultiheadAttention(nn.MultiheadAttention):
    """``torch.nn.MultiheadAttention``, computed by ``headwise.attend``.

    Constructor, state dict, arguments and results are torch's, so that it can take the place of
    torch's layer inside modules of others; ``True`` in a mask means "ignore". It differs where
    torch's layer is wrong or leaves a choice:

    - A query that may attend nowhere gets zeros for its context and for its weights; torch gives
      NaN, or other numbers in ``eval()``.
    - ``is_causal`` never stands for another mask than ``attn_mask``.
    - ``nn.TransformerEncoderLayer`` always calls it, also in ``eval()``, where it passes torch's
      layer over and reads its parameters itself.
    - An ``nn.TransformerEncoder`` built around it uses no nested tensors, so padding is computed
      like all else; torch says so in a ``UserWarning``, unless ``enable_nested_tensor=False`` is
      given. One that was built before the layer was put in still turns padded inputs into nested
      tensors in ``eval()``. The layer takes them, and pads them again.
    - ``torch.jit.script`` and ``torch.fx.symbolic_trace`` fail on it; ``torch.compile`` and
      ``torch.export`` do not.

    Example:
        >>> import torch, headwise as hw
        >>> layer = torch.nn.TransformerEncoderLayer(16, 4, batch_first=True).eval()
        >>> x = torch.randn(2, 5, 16)
        >>> before = layer(x)
        >>> layer.self_attn = hw.nn.TorchMultiheadAttention.from_torch(layer.self_attn)
        >>> bool((layer(x) - before).abs().max() < 1e-5)
        True
    """

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> "TorchMultiheadAttention":
        """Return a layer of this class that takes over the parameters of torch's themselves.

        They are the same objects, so optimisers keep working; hooks and the mode come along.
        ``headwise.MultiHeadAttention.from_torch`` instead copies the weights into our own layer.

        Raises:
            TypeError: A module that is another's subclass with a forward of its own, or one with
                parametrisations, which belong to its class.
        """
        check_forward(f"{_NAME}.from_torch", module)
        if parametrize.is_parametrized(module):
            raise TypeError(
                f"{_NAME}.from_torch: the parameters of the module have parametrisations, which "
                "belong to its class\n"
                "  hint: make them plain first with torch.nn.utils.parametrize"
                ".remove_parametrizations"
            )
        made = cls.__new__(cls)
        state = {
            name: _moved(part, module, made) if isinstance(part, dict) else part
            for name, part in vars(module).items()
        }
        made.__setstate__(state)
        return made

    @override
    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend and project.

        Args:
            query: (q_len, batch, embed_dim), or (batch, q_len, embed_dim) with ``batch_first``;
                (q_len, embed_dim) is one sample. A strided nested tensor, (batch, any length,
                embed_dim), is taken where it is key and value, too.
            key: Likewise, with ``kv_len`` and ``kdim``.
            value: Likewise, with ``kv_len`` and ``vdim``.
            key_padding_mask: (batch, kv_len), or (kv_len,) for one sample: booleans, ``True`` =
                ignore, or numbers added to the scores.
            need_weights: Whether the weights are returned, too, which takes memory and time for
                every pair of query and key. In training, dropout then draws torch's own numbers.
            attn_mask: (q_len, kv_len) or (batch * num_heads, q_len, kv_len), of either kind.
            average_attn_weights: Whether the weights are the mean over the heads.
            is_causal: A hint that ``attn_mask`` is causal; it changes no result.

        Returns:
            The output in the layout of ``query``, and the weights that made it, dropout included:
            (batch, q_len, kv_len), or (batch, num_heads, q_len, kv_len) for each head; ``None``
            without ``need_weights``. The keys that ``add_bias_kv`` and ``add_zero_attn`` add stand
            at the end, and every query sees them.

        Raises:
            ShapeError: Sizes that do not fit, or nested tensors in other uses.
            DtypeError: Inputs of another dtype or on another device than the parameters.
            PatternError: Masks of other sizes.
            RuntimeError: ``is_causal`` without ``attn_mask``.
        """
        if query.is_nested or key.is_nested or value.is_nested:
            found = padded(
                query, key, value, key_padding_mask, attn_mask, batch_first=self.batch_first
            )
            x, ends = found.samples, found.padding
            output, weights = self.forward(
                x, x, x, ends, need_weights, None, average_attn_weights, is_causal
            )
            if weights is not None:
                ends = ends.unsqueeze(-1) if average_attn_weights else ends[:, None, :, None]
                weights = weights.masked_fill(ends, 0.0)
            return nested(output, found.lengths), weights
        check_inputs(self, query, key, value)
        one = query.ndim == 2
        q, k, v = map(self._split, self._project(query, key, value))
        kv_len = k.shape[2]
        k, v = self._extended(k, v)
        sizes = Sizes(one, q.shape[0], self.num_heads, q.shape[2], kv_len, k.shape[2] - kv_len)
        masks = read_masks(key_padding_mask, attn_mask, is_causal, sizes)
        dropout_p = self.dropout if self.training else 0.0
        if not need_weights:
            context = attend(
                q, k, v, masks.pattern, bias=masks.bias, dropout_p=dropout_p, q_offset=0
            )
            return project(self.out_proj, self._combined(context, one)), None
        weights = attention_weights(q, k, masks.pattern, bias=masks.bias, q_offset=0)
        if dropout_p > 0.0:
            weights = functional.dropout(weights.flatten(0, 1), dropout_p).view_as(weights)
        context = weighed(weights, v, partial(seen_pairs, q, k, masks.pattern, masks.bias))
        output = project(self.out_proj, self._combined(context, one))
        if average_attn_weights:
            weights = weights.mean(1)
        return output, weights.squeeze(0) if one else weights

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._qkv_same_embed_dim = False

    @override
    def extra_repr(self) -> str:
        shown = f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, "
        shown += f"batch_first={self.batch_first}"
        if (self.kdim, self.vdim) != (self.embed_dim, self.embed_dim):
            shown += f", kdim={self.kdim}, vdim={self.vdim}"
        return f"{shown}, dropout={self.dropout}" if self.dropout else shown

    @override
    def _reset_parameters(self) -> None:
        # Torch draws by a flag that its encoders read, too: they compute attention themselves, from
        # the parameters, wherever it is set.
        self._qkv_same_embed_dim = self.in_proj_weight is not None
        super()._reset_parameters()
        self._qkv_same_embed_dim = False

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """Return queries, keys and values, (…, embed_dim); inputs that are one go through once."""
        bias, width = self.in_proj_bias, self.embed_dim
        if self.in_proj_weight is None:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
            biases = (None,) * 3 if bias is None else bias.chunk(3)
            return tuple(map(linear, (query, key, value), weights, biases))

        def mapped(x: Tensor, first: int, last: int) -> tuple[Tensor, ...]:
            rows = slice(first * width, last * width)
            part = None if bias is None else bias[rows]
            return linear(x, self.in_proj_weight[rows], part).chunk(last - first, -1)

        if query is key is value:
            return mapped(query, 0, 3)
        if key is value:
            return *mapped(query, 0, 1), *mapped(key, 1, 3)
        if query is key:
            return *mapped(query, 0, 2), *mapped(value, 2, 3)
        return *mapped(query, 0, 1), *mapped(key, 1, 2), *mapped(value, 2, 3)

    def _split(self, x: Tensor) -> Tensor:
        """Return (batch, heads, length, head_dim), whatever the layout of ``x`` is."""
        heads = x.view(*x.shape[:-1], self.num_heads, self.head_dim)
        if x.ndim == 2:
            return heads.transpose(0, 1).unsqueeze(0)
        return heads.transpose(1, 2) if self.batch_first else heads.permute(1, 2, 0, 3)

    def _combined(self, context: Tensor, one: bool) -> Tensor:
        """Return (batch, heads, length, head_dim) in the layout of the inputs."""
        if one:
            return context.squeeze(0).transpose(0, 1).flatten(1)
        if self.batch_first:
            return context.transpose(1, 2).flatten(2)
        return context.permute(2, 0, 1, 3).flatten(2)

    def _extended(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values with those that every query sees behind them."""
        shape = (key.shape[0], self.num_heads, 1, self.head_dim)
        keys, values = [key], [value]
        if self.bias_k is not None and self.bias_v is not None:
            keys.append(self.bias_k.view(shape[1:]).expand(shape))
            values.append(self.bias_v.view(shape[1:]).expand(shape))
        if self.add_zero_attn:
            keys.append(key.new_zeros(shape))
            values.append(value.new_zeros(shape))
        if len(keys) == 1:
            return key, value
        return torch.cat(keys, 2), torch.cat(values, 2)


def _moved(part: dict[Any, Any], old: nn.Module, new: nn.Module) -> dict[Any, Any]:
    """Return a copy of what a module holds; hooks that are given the module get the new one."""
    held = part.copy()
    for name, hook in part.items():
        if isinstance(hook, _WrappedHook) and hook.with_module and hook.module() is old:
            held[name] = copy(hook)
            held[name].module = ref(new)
    return held


def check_forward(caller: str, module: nn.MultiheadAttention) -> None:
    """Refuse a module that computes anything but what torch's layer computes."""
    if not isinstance(module, nn.MultiheadAttention):
        raise TypeError(
            f"{caller}: module must be a torch.nn.MultiheadAttention, got {type(module).__name__}"
        )
    own = (nn.MultiheadAttention.forward, TorchMultiheadAttention.forward)
    if "forward" in vars(module) or type(module).forward not in own:
        raise TypeError(
            f"{caller}: {type(module).__name__} has a forward of its own, which would be lost\n"
            "  hint: convert the torch.nn.MultiheadAttention that it was made from"
        )
