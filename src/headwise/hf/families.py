"""Which classes attend through transformers' attention interface, and which by their own code.

Nothing is listed by hand: the names that a class uses in its compiled code say which it is.
"""

import dis
import sys
from collections.abc import Iterator
from functools import cache
from inspect import signature, unwrap
from types import CodeType, FunctionType, ModuleType
from typing import Literal
from weakref import WeakKeyDictionary

from torch import nn

from headwise.errors import BackendRefused

_INTERFACE = "ALL_ATTENTION_FUNCTIONS"
_SOFTMAX = frozenset(
    ("softmax", "Softmax", "scaled_dot_product_attention", "multi_head_attention_forward")
)
_PRODUCTS = frozenset(("matmul", "bmm", "baddbmm", "einsum"))
_known: "WeakKeyDictionary[type, frozenset[str]]" = WeakKeyDictionary()


def uses_interface(kind: type) -> bool:
    """Say whether a module class attends through transformers' attention interface."""
    return _INTERFACE in _names(kind)


def attends_itself(kind: type) -> bool:
    """Say whether a module class computes attention in code of its own."""
    if issubclass(kind, nn.MultiheadAttention):
        return True
    names = _names(kind)
    if _INTERFACE in names or not names & _SOFTMAX:
        return False
    return "scaled_dot_product_attention" in names or bool(
        named_attention(kind) or names & _PRODUCTS
    )


def masks_made_by(kind: type) -> Literal["causal", "free", "both", "none"]:
    """Say which masks a class makes for the attention inside it.

    A class that makes both kinds chooses by its configuration.
    """
    names = _names(kind)
    causal = any(name.startswith("create_") and name.endswith("causal_mask") for name in names)
    free = any(name.startswith("create_bidirectional") for name in names)
    if causal and free:
        return "both"
    return "causal" if causal else "free" if free else "none"


def named_attention(kind: type) -> bool:
    """Say whether a class is attention by its name, whatever it computes."""
    return "ttention" in kind.__name__


@cache
def own_attention(module: ModuleType) -> tuple[str, ...]:
    """Return the attention classes of a modelling file that the interface cannot reach.

    Those are all of them where none asks the interface, and otherwise those that a table of the
    file chooses by the name of the implementation.
    """
    kinds = list(_module_classes(module))
    if not any(uses_interface(kind) for kind in kinds):
        return tuple(sorted(kind.__name__ for kind in kinds if named_attention(kind)))
    names = frozenset().union(*(_names(kind) for kind in kinds))
    if not any(name.endswith("_ATTENTION_CLASSES") for name in names):
        return ()
    return tuple(sorted(kind.__name__ for kind in kinds if attends_itself(kind)))


@cache
def own_half(model_class: type) -> tuple[str, ...]:
    """Return the attention classes of its own in a model class, where others ask the interface.

    Those are what it builds, or what that builds in turn, as far as its modelling file goes: a
    decoder is not its encoder, and a part that is chosen by its configuration is a model by itself.
    """
    found = (kind for kind in _built_by(model_class) if mixes_tokens_itself(kind))
    return tuple(sorted(kind.__name__ for kind in found))


def mixes_tokens_itself(kind: type) -> bool:
    """Say whether a class stands where another would ask the interface, and attends by itself.

    It is named attention, takes a mask, weighs pairs, and has values. So layers of states
    (Mamba, linear attention), pooling, sampled points and blocks of images are none.
    """
    if not (issubclass(kind, nn.Module) and named_attention(kind) and attends_itself(kind)):
        return False
    masked = any("mask" in name for name in signature(kind.forward).parameters)
    return masked and _weighs_pairs(kind) and any(map(_is_value, _names(kind)))


def refuse_own_attention(model_class: type) -> None:
    """Refuse a model class with attention that never asks the attention interface.

    Raises:
        BackendRefused: Its attention, or a part of it, is code of its own, which headwise would
            not reach.
    """
    module = sys.modules.get(model_class.__module__)
    found = own_attention(module) if module is not None else ()
    if found:
        raise _refusal(model_class.__name__, found)
    half = own_half(model_class)
    if half:
        raise _refusal(model_class.__name__, half, "and only the rest of it asks")


def refuse_config(config: object) -> None:
    """Refuse a mask for a model that would use it in attention of its own.

    Raises:
        BackendRefused: As ``refuse_own_attention``, found from the configuration of the model.
    """
    for module in _modelling_files(type(config).__module__):
        found = own_attention(module)
        if found:
            raise _refusal(str(getattr(config, "model_type", type(config).__name__)), found)


def wholly_served(config: object) -> bool:
    """Say whether every attention in the modelling file of a configuration asks the interface."""
    files = _modelling_files(type(config).__module__)
    return not any(attends_itself(kind) for file in files for kind in _module_classes(file))


def _modelling_files(config_module: str) -> list[ModuleType]:
    package = config_module.rpartition(".")[0]
    name = config_module.replace(f"{package}.configuration_", f"{package}.modeling_")
    found = sys.modules.get(name) if name != config_module else None
    return [] if found is None else [found]


def _refusal(name: str, found: tuple[str, ...], asks: str = "and never asks") -> BackendRefused:
    return BackendRefused(
        f"attn_implementation='headwise': {name} attends by its own code "
        f"({', '.join(found)}) {asks} transformers' attention interface\n"
        "  hint: load it with attn_implementation='eager' or leave that out; where a part of a "
        "larger model does ask the interface, name the part, as in "
        "attn_implementation={'text_config': 'headwise'}"
    )


def _module_classes(module: ModuleType) -> Iterator[type]:
    for kind in vars(module).values():
        ours = isinstance(kind, type) and kind.__module__ == module.__name__
        if ours and issubclass(kind, nn.Module):
            yield kind


def _built_by(kind: type) -> set[type]:
    """Return a class, the module classes of its file that its ``__init__`` names, and theirs."""
    found: set[type] = set()
    waiting = [kind]
    while waiting:
        one = waiting.pop()
        if one in found:
            continue
        found.add(one)
        here = vars(sys.modules[kind.__module__])
        for base in one.__mro__:
            made = vars(base).get("__init__")
            if base.__module__ == kind.__module__ and callable(made):
                named = [here.get(name) for name in _code_names(unwrap(made).__code__)]
                waiting.extend(
                    part
                    for part in named
                    if isinstance(part, type)
                    and part.__module__ == kind.__module__
                    and issubclass(part, nn.Module)
                )
    return found


def _weighs_pairs(kind: type) -> bool:
    """Say whether a class multiplies matrices, by name or by an operator."""
    if _names(kind) & (_PRODUCTS | {"scaled_dot_product_attention"}):
        return True
    own = (base for base in kind.__mro__ if not base.__module__.startswith("torch."))
    functions = (member for base in own for member in vars(base).values())
    return any(
        step.argrepr == "@"
        for function in functions
        if isinstance(function, FunctionType)
        for step in dis.get_instructions(unwrap(function))
    )


def _is_value(name: str) -> bool:
    return name == "v" or name.startswith("v_") or "value" in name or "qkv" in name


def _names(kind: type) -> frozenset[str]:
    """Return every name that the code of a class and its bases uses, torch's own left out."""
    if kind in _known:
        return _known[kind]
    found: set[str] = set()
    for base in kind.__mro__:
        if base.__module__.startswith("torch.") or base.__name__ == "PreTrainedModel":
            continue
        for member in vars(base).values():
            function = unwrap(member) if callable(member) else member
            if isinstance(function, FunctionType):
                found.update(_code_names(function.__code__))
    return _known.setdefault(kind, frozenset(found))


def _code_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code_names(constant)
