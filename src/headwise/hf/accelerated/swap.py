"""Gives a module another class, and its own back: parameters, names and hooks stay as they are.

A fast class is a subclass of the one it stands in for, with ``forward`` written anew and no state
of its own, so a module with it saves, loads, copies and trains as before. Its static method
``refusal(module)`` says why a module must be left as it is; ``None`` where it need not be. A class
that hands some calls to the code it replaces names them in ``hands_over``, for the report.
"""

from torch import nn


def swap(module: nn.Module, fast: type) -> None:
    """Give a module the fast class; its exact class must be the base of that."""
    assert type(module) is base_of(fast)
    module.__class__ = fast


def swap_back(module: nn.Module) -> None:
    """Give a module its own class back."""
    module.__class__ = base_of(type(module))


def is_fast(module: nn.Module) -> bool:
    """Say whether a module has a fast class."""
    return type(module).__module__.startswith(f"{__package__}.")


def is_packed(module: nn.Module) -> bool:
    """Say whether a module is a layer whose fast class leaves padding out."""
    return type(module).__module__ == f"{__package__}.packed_layers"


def base_of(fast: type) -> type:
    """Return the class of another library that a fast one stands in for."""
    return next(kind for kind in fast.__mro__ if not kind.__module__.startswith("headwise."))


def refusal_of(module: nn.Module, fast: type) -> str | None:
    """Say why a module must not be given a fast class; ``None`` where it may be."""
    if "forward" in vars(module):
        return "its forward was replaced"
    reason: str | None = fast.refusal(module)  # type: ignore[attr-defined]
    return reason
