"""Torch's own layer as a ``MultiHeadAttention`` with the same numbers."""

from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize

from headwise.nn.attention import MultiHeadAttention
from headwise.nn.extra_keys import ExtraKeys
from headwise.nn.projection import PLAIN_LINEAR
from headwise.nn.torch_attention import check_forward

_CALLER = "MultiHeadAttention.from_torch"
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def from_torch(module: nn.MultiheadAttention) -> MultiHeadAttention:
    """Return a ``MultiHeadAttention`` with copies of the weights of torch's layer.

    Torch's layer stays as it is. ``TorchMultiheadAttention.from_torch`` instead takes over the
    parameters themselves and keeps torch's interface.

    The result computes what torch's layer computes.
    Every variant is taken: packed or separate projections, ``kdim`` and ``vdim``, with and without
    biases, ``add_bias_kv``, ``add_zero_attn``, dropout, any device and dtype; frozen parameters
    stay frozen, and the mode, training or not, is kept. The result is batch-first always, and a
    mask means "may attend". A query that may attend nowhere gets zeros for its context, where torch
    gives NaN.

    Raises:
        TypeError: A subclass with a forward of its own, hooks, parametrisations, or weights of a
            kind that cannot be copied, such as quantised ones.

    Example:
        >>> import torch
        >>> theirs = torch.nn.MultiheadAttention(16, 4)
        >>> ours, x = from_torch(theirs), torch.randn(2, 5, 16)
        >>> wanted = theirs(*[x.transpose(0, 1)] * 3)[0].transpose(0, 1)
        >>> bool((ours(x) - wanted).abs().max() < 1e-5)
        True
    """
    _refuse(module)
    learned, zero = module.bias_k is not None, module.add_zero_attn
    extra: ExtraKeys | None = None
    if learned or zero:
        extra = ExtraKeys(
            module.num_heads, module.head_dim, learned=learned, zero=zero, device="meta"
        )
    layer = MultiHeadAttention(
        module.embed_dim,
        module.num_heads,
        kv_dim=module.kdim,
        dropout=module.dropout,
        mechanism=extra,
        device="meta",
    )
    if module.vdim != module.kdim:
        layer.W_v = nn.Linear(module.vdim, module.embed_dim, device="meta")
        layer._widths = (module.embed_dim, module.kdim, module.vdim)
    weights, biases = _projections(module)
    for name, weight, bias in zip(("W_q", "W_k", "W_v"), weights, biases, strict=True):
        _give(layer.get_submodule(name), weight=weight, bias=bias)
    _give(layer.W_o, weight=module.out_proj.weight, bias=module.out_proj.bias)
    if extra is not None and module.bias_k is not None and module.bias_v is not None:
        heads = (module.num_heads, module.head_dim)
        _give(extra, bias_k=module.bias_k.view(heads), bias_v=module.bias_v.view(heads))
    return layer.train(module.training)


def _projections(
    module: nn.MultiheadAttention,
) -> tuple[tuple[Tensor, ...], tuple[Tensor | None, ...]]:
    """Return weights and biases of the projections of query, key and value."""
    if module.in_proj_weight is None:
        weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    else:
        weights = module.in_proj_weight.chunk(3)
    bias = module.in_proj_bias
    return weights, (None,) * 3 if bias is None else bias.chunk(3)


def _give(layer: nn.Module, **tensors: Tensor | None) -> None:
    """Give a layer copies as parameters, frozen where the tensors are."""
    for name, tensor in tensors.items():
        copy: Any = None
        if tensor is not None:
            copy = nn.Parameter(tensor.detach().clone(), requires_grad=tensor.requires_grad)
        setattr(layer, name, copy)


def _refuse(module: nn.MultiheadAttention) -> None:
    check_forward(_CALLER, module)
    if (module.bias_k is None) != (module.bias_v is None):
        raise TypeError(f"{_CALLER}: bias_k and bias_v must both be given or both be None")
    for name, part in (("the module", module), ("its out_proj", module.out_proj)):
        if parametrize.is_parametrized(part):
            raise TypeError(
                f"{_CALLER}: {name} has parametrisations, which copies of its weights would lose\n"
                "  hint: make the weights plain first with torch.nn.utils.parametrize"
                ".remove_parametrizations"
            )
        if any(getattr(part, hooks) for hooks in _HOOKS):
            raise TypeError(
                f"{_CALLER}: {name} has hooks, which would be lost\n"
                "  hint: remove them, or use headwise.nn.TorchMultiheadAttention.from_torch, "
                "which keeps them"
            )
    if type(module.out_proj) not in PLAIN_LINEAR:
        raise TypeError(
            f"{_CALLER}: out_proj must be an nn.Linear, got {type(module.out_proj).__name__}\n"
            "  hint: merge adapters and convert before quantising, or use "
            "headwise.nn.TorchMultiheadAttention.from_torch, which calls it as it is"
        )
    for name, parameter in module.named_parameters():
        if type(parameter) is not nn.Parameter or parameter.is_quantized:
            raise TypeError(
                f"{_CALLER}: {name} must be a plain parameter, got {type(parameter).__name__}\n"
                "  hint: convert before quantising or sharding the module"
            )
