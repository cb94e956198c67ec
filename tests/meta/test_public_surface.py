"""The names and signatures that users see, held against a stored list."""

import inspect
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

import headwise
from headwise import (
    cache,
    export,
    hf,
    inspection,
    models,
    nn,
    ops,
    patch,
    patterns,
    positions,
)

STORED = Path(__file__).with_name("public_api.txt")
PACKAGES = (
    *(headwise, patterns, positions, ops, cache, nn),
    *(models, hf, patch, export, inspection),
)


def _lines() -> Iterator[str]:
    for package in PACKAGES:
        for name in sorted(package.__all__):
            member = getattr(package, name)
            yield f"{package.__name__}.{name}{_signature(member)}"
            if package is headwise and inspect.isclass(member):
                yield from _methods(f"{package.__name__}.{name}", member)


def _methods(where: str, kind: type) -> Iterator[str]:
    for name, member in sorted(vars(kind).items()):
        if not name.startswith("_") and inspect.isfunction(member):
            yield f"{where}.{name}{_signature(member)}"


def _signature(member: object) -> str:
    if not callable(member) or (inspect.isclass(member) and issubclass(member, Exception)):
        return ""
    signature = inspect.signature(member)
    bases: tuple[type, ...] = member.__bases__ if inspect.isclass(member) else ()
    # Fields of a dataclass of transformers change with its version.
    theirs = {field.name for base in bases if is_dataclass(base) for field in fields(base)}
    bare = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
        if parameter.name not in theirs or parameter.name in vars(member).get("__annotations__", {})
    ]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def test_surface_is_as_stored() -> None:
    found = "\n".join(_lines()) + "\n"
    assert found == STORED.read_text(encoding="utf-8"), (
        "the public surface has changed; if that is meant, store it anew:\n" + found
    )


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_all_names_exist_once(package: object) -> None:
    names = package.__all__  # type: ignore[attr-defined]
    assert len(set(names)) == len(names)
    assert all(getattr(package, name) is not None for name in names)
