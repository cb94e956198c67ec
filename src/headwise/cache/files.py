"""Caches as files in the safetensors format, with their kinds and counts as metadata."""

import json
from os import PathLike, fspath
from pathlib import Path
from stat import S_IMODE
from typing import Any, NamedTuple
from uuid import uuid4

import torch
from torch import Tensor

from headwise.cache.file_checks import (
    check_counts,
    check_names,
    check_rows,
    counts_of,
    length_of_state,
    number_of,
    sum_of,
)
from headwise.cache.kinds import Kind, check_kind
from headwise.cache.limits import check_rows_of_state
from headwise.cache.nest_forms import built, form_of
from headwise.cache.pool import PagePool
from headwise.cache.row_formats import Tensors
from headwise.cache.states import LayerState, check_nest, tensors_of
from headwise.cache.storage import Given, Storage
from headwise.errors import CacheError

_FORMAT, _VERSION = "headwise.KVCache", "2"
# Files of version 1 have no sum over their description.
_READ = ("1", _VERSION)
# What reading raises where a description and its tensors do not fit, or ask for absurd memory.
_MISFITS = (
    *(LookupError, ValueError, TypeError, AttributeError),
    *(ArithmeticError, RuntimeError, MemoryError),
)


class Contents(NamedTuple):
    """What a file holds."""

    kind: Kind
    layers: dict[int, Storage]
    states: dict[int, LayerState]


def save(
    path: str | PathLike[str],
    kind: Kind,
    layers: dict[int, Storage],
    states: dict[int, LayerState],
) -> None:
    """Write what a cache holds to a file beside ``path``, and give it that name."""
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    said: dict[str, Any] = {"kind": _kind_said(kind), "layers": {}, "states": {}}
    for number, storage in layers.items():
        if storage.given is not None:
            stored, counts = storage.dump()
            said["layers"][number] = {"given": _given_said(storage.given), "counts": counts}
            tensors |= _numbered(f"layers.{number}", stored)
    for number, state in states.items():
        said["states"][number] = {"form": form_of(state.nest), "length": state.length}
        tensors |= _numbered(f"states.{number}", tensors_of(state.nest))
    described = json.dumps(said)
    metadata = {
        "format": _FORMAT,
        "version": _VERSION,
        "cache": described,
        "sum": sum_of(described, tensors),
    }
    # What a link names is written, not the link.
    target = Path(fspath(path)).resolve()
    if not target.parent.is_dir():
        raise FileNotFoundError(
            f"KVCache.save: there is no folder {str(target.parent)!r} for {target.name!r}\n"
            "  hint: make it before, as with pathlib.Path.mkdir(parents=True)"
        )
    written = target.with_name(f"{target.name}.{uuid4().hex}")
    written.touch(exist_ok=False)  # with the permissions that the umask leaves
    try:
        mode = S_IMODE((target if target.exists() else written).stat().st_mode)
        save_file(tensors, written, metadata)
        written.chmod(mode)
        written.replace(target)
    except BaseException:
        written.unlink(missing_ok=True)
        raise


def load(path: str | PathLike[str], pool: PagePool | None, device: torch.device | str) -> Contents:
    """Read what ``save`` wrote, or refuse the file."""
    from safetensors import SafetensorError, safe_open

    target = Path(fspath(path))
    if not target.is_file():
        raise FileNotFoundError(f"KVCache.load: there is no file {str(target)!r}")
    try:
        with safe_open(target, "pt", device=str(device)) as file:
            metadata = file.metadata() or {}
            _check_version(target, metadata)
            tensors = {name: file.get_tensor(name) for name in list(file.keys())}
        return _contents(_said(metadata, tensors), tensors, pool)
    except CacheError:
        raise
    except SafetensorError as wrong:
        raise _refusal(target, f"be a whole safetensors file, and reading says: {wrong}") from None
    except _MISFITS as wrong:
        raise _refusal(target, f"describe its tensors, and does not: {wrong!r}") from wrong


def _check_version(path: Path, metadata: dict[str, str]) -> None:
    if metadata.get("format") != _FORMAT:
        raise _refusal(path, f"be a cache, got the format {metadata.get('format')!r}")
    if metadata.get("version") not in _READ:
        raise _refusal(path, f"be of version {' or '.join(_READ)}, got {metadata.get('version')!r}")


def _said(metadata: dict[str, str], tensors: dict[str, Tensor]) -> dict[str, Any]:
    described = metadata["cache"]
    if metadata["version"] == _VERSION and metadata["sum"] != sum_of(described, tensors):
        raise ValueError("a description that has changed since it was written")
    found: dict[str, Any] = json.loads(described)
    check_names("description", found, {"kind", "layers", "states"})
    return found


def _contents(said: dict[str, Any], tensors: dict[str, Tensor], pool: PagePool | None) -> Contents:
    kind = _kind(said["kind"], pool)
    layers: dict[int, Storage] = {}
    for name, layer in said["layers"].items():
        check_names(f"layer {name}", layer, {"given", "counts"})
        given = _given(layer["given"], tensors[f"layers.{name}.0"].device)
        rows = _taken(f"layers.{name}", tensors)
        check_rows(rows, given, kind)
        counts = {key: counts_of(count, given.batch) for key, count in layer["counts"].items()}
        check_counts(counts, rows, given, kind)
        storage = kind.made()
        storage.fill(given, rows, counts)
        layers[number_of(name)] = storage
    states = {}
    for name, state in said["states"].items():
        number = number_of(name)
        states[number] = _state(name, state, tensors)
        beside = None if number not in layers else layers[number].given
        check_rows_of_state(number, states[number].nest, None if beside is None else beside.batch)
    if tensors:
        raise ValueError(f"tensors that nothing describes: {', '.join(sorted(tensors))}")
    return Contents(kind, layers, states)


def _state(name: str, said: dict[str, Any], tensors: dict[str, Tensor]) -> LayerState:
    check_names(f"state {name}", said, {"form", "length"})
    taken = iter(_taken(f"states.{name}", tensors))
    nest = built(said["form"], taken)
    if next(taken, None) is not None:
        raise ValueError(f"more tensors than state {name} has")
    check_nest(nest)
    return LayerState(nest, length_of_state(said["length"]))


def _kind_said(kind: Kind) -> dict[str, Any]:
    dtype = None if kind.dtype is None else str(kind.dtype).removeprefix("torch.")
    page = None if kind.pool is None else kind.pool.page
    return kind._asdict() | {"dtype": dtype, "pool": page}


def _kind(said: dict[str, Any], pool: PagePool | None) -> Kind:
    dtype, page = said["dtype"], said["pool"]
    if page is None and pool is not None:
        raise CacheError(
            "KVCache.load: pool is for a cache in pages, and this one was saved without\n"
            "  hint: leave pool out"
        )
    if page is not None and pool is None:
        pool = PagePool(page=page)
    found = None if dtype is None else getattr(torch, dtype)
    check_names("kind", said, set(Kind._fields))
    return check_kind(Kind(**(said | {"dtype": found, "pool": pool})))


def _given_said(given: Given) -> list[Any]:
    dtypes = [str(dtype).removeprefix("torch.") for dtype in given.dtypes]
    return [given.batch, given.kv_heads, list(given.widths), dtypes]


def _given(said: list[Any], device: torch.device) -> Given:
    batch, kv_heads, (key_dim, value_dim), (key_dtype, value_dtype) = said
    dtypes = getattr(torch, key_dtype), getattr(torch, value_dtype)
    return Given(int(batch), int(kv_heads), (int(key_dim), int(value_dim)), dtypes, device)


def _numbered(name: str, tensors: Tensors | list[Tensor]) -> dict[str, Tensor]:
    return {
        f"{name}.{n}": tensor.detach().cpu().contiguous().clone()
        for n, tensor in enumerate(tensors)
    }


def _taken(name: str, tensors: dict[str, Tensor]) -> Tensors:
    """Take the tensors of a layer or a state out of those of a file."""
    found: list[Tensor] = []
    while f"{name}.{len(found)}" in tensors:
        found.append(tensors.pop(f"{name}.{len(found)}"))
    return tuple(found)


def _refusal(path: Path, rule: str) -> CacheError:
    return CacheError(
        f"KVCache.load: {str(path)!r} must {rule}\n"
        "  hint: load what KVCache.save of the same version of headwise wrote"
    )
