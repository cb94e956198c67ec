"""Says whether a layer computes each token by itself, but for attention under a mask of ours.

Nothing is listed by family: the names that the code of a layer and of its parts uses say it. What
uses any other name than those below may mix tokens, and is left.
"""

import dis
from collections.abc import Iterator
from functools import cache
from inspect import signature, unwrap
from types import CodeType, FunctionType
from typing import Any

from torch import Tensor, nn

from headwise.hf.accelerated.refusals import without_core
from headwise.hf.conversion.converted import Converted
from headwise.hf.families import attends_itself, uses_interface
from headwise.hf.linear_layers import own_class

# Classes of torch that compute along the last dimension or element by element, and files of
# transformers with no others.
_ALONG_WIDTH = (nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.Dropout, nn.Identity)
_ELEMENTWISE = (nn.GELU, nn.SiLU, nn.ReLU, nn.Tanh, nn.Sigmoid, nn.Mish, nn.LeakyReLU)
_HOLDERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
_TORCHS = (*_ALONG_WIDTH, *_ELEMENTWISE, *_HOLDERS)
_FILES = ("transformers.activations", "transformers.pytorch_utils")

# Names that code may use beside the attributes of its own module.
_INTERFACE = "ALL_ATTENTION_FUNCTIONS get_interface _attn_implementation eager_attention_forward"
_CACHES = (
    "EncoderDecoderCache self_attention_cache cross_attention_cache is_updated layers keys values "
    "get update"
)
_SHAPES = "shape view reshape transpose contiguous unbind chunk apply_chunking_to_forward"
_NUMBERS = (
    "torch nn functional dtype float16 finfo isfinite clamp dropout p gelu relu silu "
    "apply_rotary_pos_emb"
)
_LANGUAGE = "super Tensor isinstance hasattr enumerate ValueError AttributeError crossattention"
_KNOWN = frozenset(" ".join((_INTERFACE, _CACHES, _SHAPES, _NUMBERS, _LANGUAGE)).split())
# Names of what mixes tokens, too, that mean no such thing beside another name.
_BESIDE = {"all": "isfinite", "max": "finfo"}
_SHOWN = 3
_TAKES = ["self", "hidden_states", "attention_mask"]


def refusal(layer: nn.Module) -> str | None:
    """Say why a layer must be given padding, too; ``None`` where it need not be.

    Args:
        layer: One of a stack; with other parts inside that headwise has accelerated, or without.
    """
    return next(_reasons([(part, own_class(part)) for part in layer.modules()]), None)


def _reasons(kinds: list[tuple[nn.Module, type]]) -> Iterator[str]:
    yield from filter(None, [without_core(kinds[0][0])])
    if any(isinstance(part, Converted) for part, _ in kinds):
        yield "its attention is converted"
    for part, kind in kinds:
        if "forward" in vars(part):
            yield f"the forward of its {kind.__name__} was replaced"
        elif "position_bias" in _arguments(kind):
            yield f"its {kind.__name__} adds biases of distances, which packing changes"
        elif attends_itself(kind):
            yield f"its {kind.__name__} attends by its own code"
    flags = ("is_causal", "is_decoder")
    if any(getattr(part, flag, False) for part, _ in kinds for flag in flags):
        yield "it is a decoder's"
    if any(getattr(part, "chunk_size_feed_forward", 0) for part, _ in kinds):
        yield "it cuts its input into chunks, chunk_size_feed_forward"
    if not any(uses_interface(kind) for _, kind in kinds):
        yield "it never asks transformers' attention interface"
    if _arguments(kinds[0][1])[:3] != _TAKES:
        yield "it takes other arguments than hidden_states and attention_mask first"
    # What attends says most about a family.
    for part, kind in sorted(kinds, key=lambda pair: not uses_interface(pair[1])):
        yield from _what_may_mix(part, kind)


def _arguments(kind: type) -> list[str]:
    forward: Any = getattr(kind, "forward", None)
    return [] if forward is None else list(signature(unwrap(forward)).parameters)


def _what_may_mix(part: nn.Module, kind: type) -> Iterator[str]:
    if kind in _TORCHS or kind.__module__ in _FILES:
        return
    if kind.__module__.startswith("torch."):
        yield f"its {kind.__name__} may mix tokens"
        return
    used = _strange(kind)
    other = used - {*vars(part), *part._modules, *part._parameters, *part._buffers, *dir(kind)}
    # Functions that a module holds, and methods that were put in the place of its own.
    held = {name: vars(part)[name] for name in used & vars(part).keys()}
    other |= {name for name, value in held.items() if callable(value) and not _is_known(value)}
    if other:
        names = sorted(other)
        more = ", …" if len(names) > _SHOWN else ""
        yield f"its {kind.__name__} may mix tokens: it uses {', '.join(names[:_SHOWN])}{more}"
    for name, numbers in (*part._parameters.items(), *part._buffers.items()):
        if numbers is not None and numbers.ndim > 1:
            yield f"its {kind.__name__} may tell places apart: it holds {name} {_size(numbers)}"


def _is_known(function: object) -> bool:
    return getattr(function, "__name__", None) in _KNOWN


def _size(numbers: Tensor) -> str:
    return str(tuple(numbers.shape))


@cache
def _strange(kind: type) -> frozenset[str]:
    """Return what the code of a class uses that is not known to leave tokens apart."""
    found: set[str] = set()
    for base in kind.__mro__:
        if base.__module__.startswith("torch.") or base.__name__ == "GradientCheckpointingLayer":
            continue
        for name, member in vars(base).items():
            given: Any = member.fget if isinstance(member, property) else member
            function = unwrap(given)
            if isinstance(function, FunctionType) and name not in ("__init__", "extra_repr"):
                found.update(_strange_in(function.__code__))
    return frozenset(found)


def _strange_in(code: CodeType) -> Iterator[str]:
    known = _KNOWN | {name for name, other in _BESIDE.items() if other in code.co_names}
    yield from (name for name in code.co_names if name not in known)
    yield from (name for name in code.co_freevars if name != "__class__")
    before = None
    for step in dis.get_instructions(code):
        picks = step.opname == "BINARY_SUBSCR" or (
            step.opname == "BINARY_OP" and step.argrepr == "[]"
        )
        if picks and before is not None and _is_tuple(before):
            yield "x[…, …]"
        if step.opname == "STORE_SUBSCR" and "is_updated" not in code.co_names:
            yield "x[…] = …"
        if step.opname == "BINARY_OP" and step.argrepr.startswith("@"):
            yield "@"
        before = step
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _strange_in(constant)


def _is_tuple(step: dis.Instruction) -> bool:
    return step.opname == "BUILD_TUPLE" or isinstance(step.argval, tuple)
