"""The form of a state in words that a file can hold, and states built from them."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from torch import Tensor

from headwise.cache.states import Nest
from headwise.errors import CacheError

_HERE = "headwise."


def form_of(nest: Nest) -> Any:  # noqa: ANN401
    """Return what a nest is made of, as JSON holds it; its tensors are written elsewhere.

    Raises:
        CacheError: A named tuple that is not of headwise.
    """
    if nest is None:
        return None
    if isinstance(nest, Tensor):
        return "tensor"
    if isinstance(nest, dict):
        return {"dict": {name: form_of(part) for name, part in nest.items()}}
    parts = [form_of(part) for part in nest]
    kind = type(nest)
    if kind in (list, tuple):
        return {kind.__name__: parts}
    if not kind.__module__.startswith(_HERE):
        raise CacheError(
            f"KVCache.save: a state must be made of tuples, lists and dictionaries, got "
            f"{kind.__name__} of {kind.__module__}\n"
            "  hint: a file is not allowed to name code of others; keep a plain tuple"
        )
    return {"named": [kind.__module__, kind.__name__], "parts": parts}


def built(form: Any, tensors: Iterator[Tensor]) -> Nest:  # noqa: ANN401
    """Return the nest of that form; raise ``ValueError`` for what ``form_of`` does not write."""
    match form:
        case None:
            return None
        case "tensor":
            return next(tensors)
        case {"dict": dict(parts)}:
            return {name: built(part, tensors) for name, part in parts.items()}
        case {"list": list(parts)}:
            return [built(part, tensors) for part in parts]
        case {"tuple": list(parts)}:
            return tuple(built(part, tensors) for part in parts)
        case {"named": [str(module), str(name)], "parts": list(parts)} if module.startswith(_HERE):
            kind = getattr(import_module(module), name)
            if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
                return kind(*(built(part, tensors) for part in parts))
    raise ValueError(f"no state has the form {form!r}")
