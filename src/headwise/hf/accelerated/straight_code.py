"""Reads what a module's ``forward`` computes, where that is modules applied to one input."""

import dis
import inspect
from types import FunctionType
from typing import NamedTuple


class Input:
    """The input of the module."""


class Step(NamedTuple):
    """A module inside, by its name, applied to what came before."""

    name: str
    of: "Computed"


class Product(NamedTuple):
    """Two results multiplied, as in gated layers."""

    left: "Computed"
    right: "Computed"


Computed = Input | Step | Product

# Functions with any number of arguments, and those that do not simply return.
_OTHER_KINDS = (
    inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR | inspect.CO_COROUTINE
)


class _Unclear(Exception):
    """The code does something that has no name here."""


class _Value:
    """What flows through the code in place of a tensor; it can be multiplied, and nothing else."""

    def __init__(self, computed: Computed) -> None:
        self.computed = computed

    def __mul__(self, other: object) -> "_Value":
        if not isinstance(other, _Value):
            raise _Unclear
        return _Value(Product(self.computed, other.computed))


class _Inside:
    """What stands for a module inside; it can be called, and nothing else."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, x: object) -> _Value:
        if not isinstance(x, _Value):
            raise _Unclear
        return _Value(Step(self._name, x.computed))


class _Module:
    """What stands for the module itself: everything that it is asked for is a module inside."""

    def __init__(self) -> None:
        self.asked: set[str] = set()

    def __getattr__(self, name: str) -> _Inside:
        self.asked.add(name)
        return _Inside(name)

    def __setattr__(self, name: str, value: object) -> None:
        if name != "asked":
            raise _Unclear
        super().__setattr__(name, value)


def computed_by(method: object) -> Step | Product | None:
    """Return what a method of a module class computes, ``None`` where it does anything else.

    Code that neither branches nor names anything but parts of its own module is run once, with
    names in place of modules. So it is told from code that only looks alike, and a class is known
    whatever it is called.
    """
    if not isinstance(method, FunctionType) or not _is_straight(method):
        return None
    module = _Module()
    try:
        found = method(module, _Value(Input()))
    except (_Unclear, TypeError, AttributeError):
        return None
    if not isinstance(found, _Value) or isinstance(found.computed, Input):
        return None
    return found.computed if set(method.__code__.co_names) <= module.asked else None


def names_in(computed: Computed) -> set[str]:
    """Return the names of all modules that take part."""
    if isinstance(computed, Step):
        return {computed.name} | names_in(computed.of)
    if isinstance(computed, Product):
        return names_in(computed.left) | names_in(computed.right)
    return set()


def _is_straight(function: FunctionType) -> bool:
    """Say whether a function takes a module and one input, and runs from top to bottom."""
    code = function.__code__
    takes_one = code.co_argcount == 2 and not code.co_kwonlyargcount
    if not takes_one or code.co_flags & _OTHER_KINDS or code.co_freevars:
        return False
    if function.__defaults__ or hasattr(function, "__wrapped__"):
        return False
    return all("JUMP" not in step.opname for step in dis.get_instructions(code))
