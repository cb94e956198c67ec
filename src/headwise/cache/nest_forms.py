"""The form of a state in words that a file can hold, and states built from them."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from headwise.cache.states import Nest
from headwise.errors import CacheError
from headwise.ops import LinearState

# A file names a kind of state, never code.
_NAMED: dict[str, Any] = {"LinearState": LinearState}


def form_of(nest: Nest) -> Any:  # noqa: ANN401
    """Return what a nest is made of, as JSON holds it; its tensors are written elsewhere.

    Raises:
        CacheError: A named tuple other than ``headwise.ops.LinearState``.
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
    if kind not in _NAMED.values():
        raise CacheError(
            "KVCache.save: a state must be made of tuples, lists and dictionaries, or be a "
            f"{' or '.join(_NAMED)}, got {kind.__name__} of {kind.__module__}\n"
            "  hint: a file is not allowed to name code of others; keep a plain tuple"
        )
    return {"named": kind.__name__, "parts": parts}


def built(form: Any, tensors: Iterator[Tensor]) -> Nest:  # noqa: ANN401
    """Return the nest of that form; raise ``ValueError`` for what ``form_of`` does not write."""
    match form:
        case None:
            return None
        case "tensor":
            return _next(tensors)
        case {"dict": dict(parts), **rest} if not rest:
            return {name: built(part, tensors) for name, part in parts.items()}
        case {"list": list(parts), **rest} if not rest:
            return [built(part, tensors) for part in parts]
        case {"tuple": list(parts), **rest} if not rest:
            return tuple([built(part, tensors) for part in parts])
        # Version 1 wrote the module of a named tuple in front of its name.
        case {"named": str(name) | [str(), str(name)], "parts": list(parts), **rest} if not rest:
            if name not in _NAMED:
                raise ValueError(
                    f"there is no state {name!r} but {', '.join(_NAMED)}; keep others as tuples"
                )
            return _NAMED[name](*[built(part, tensors) for part in parts])
    raise ValueError(f"no state has the form {form!r}")


def _next(tensors: Iterator[Tensor]) -> Tensor:
    found = next(tensors, None)
    if found is None:
        raise ValueError("a state of more tensors than there are")
    return found
