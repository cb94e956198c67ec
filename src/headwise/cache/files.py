"""Caches as files in the safetensors format, with their kinds and counts as metadata."""

import json
from os import PathLike, fspath
from pathlib import Path
from stat import S_IMODE
from typing import Any, NamedTuple
from uuid import uuid4

import torch
from torch import Tensor

from headwise.cache.file_checks import check_counts, check_rows, counts_of, length_of_state
from headwise.cache.kinds import Kind, check_kind
from headwise.cache.nest_forms import built, form_of
from headwise.cache.pool import PagePool
from headwise.cache.row_formats import Tensors
from headwise.cache.states import LayerState, tensors_of
from headwise.cache.storage import Given, Storage
from headwise.errors import CacheError

_FORMAT, _VERSION = "headwise.KVCache", "1"
# What reading raises where a description and its tensors do not fit.
_MISFITS = (LookupError, ValueError, TypeError, AttributeError, ImportError, StopIteration)


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
    metadata = {"format": _FORMAT, "version": _VERSION, "cache": json.dumps(said)}
    # What a link names is written, not the link.
    target = Path(fspath(path)).resolve()
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
            said = _said(target, file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in list(file.keys())}
        return _contents(said, tensors, pool)
    except SafetensorError as wrong:
        raise _refusal(target, f"be a whole safetensors file, and reading says: {wrong}") from None
    except _MISFITS as wrong:
        raise _refusal(target, f"describe its tensors, and does not: {wrong!r}") from wrong


def _said(path: Path, metadata: dict[str, str]) -> dict[str, Any]:
    if metadata.get("format") != _FORMAT:
        raise _refusal(path, f"be a cache, got the format {metadata.get('format')!r}")
    if metadata.get("version") != _VERSION:
        raise _refusal(path, f"be of version {_VERSION}, got {metadata.get('version')!r}")
    found: dict[str, Any] = json.loads(metadata["cache"])
    return found


def _contents(said: dict[str, Any], tensors: dict[str, Tensor], pool: PagePool | None) -> Contents:
    kind = _kind(said["kind"], pool)
    layers: dict[int, Storage] = {}
    for name, layer in said["layers"].items():
        given = _given(layer["given"], tensors[f"layers.{name}.0"].device)
        counts = {key: counts_of(count, given.batch) for key, count in layer["counts"].items()}
        rows = _taken(f"layers.{name}", tensors)
        check_rows(rows, given, kind)
        check_counts(counts, rows, given, kind)
        storage = kind.made()
        storage.fill(given, rows, counts)
        layers[int(name)] = storage
    states = {
        int(name): LayerState(
            built(state["form"], iter(_taken(f"states.{name}", tensors))),
            length_of_state(state["length"]),
        )
        for name, state in said["states"].items()
    }
    return Contents(kind, layers, states)


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
    found: list[Tensor] = []
    while f"{name}.{len(found)}" in tensors:
        found.append(tensors[f"{name}.{len(found)}"])
    return tuple(found)


def _refusal(path: Path, rule: str) -> CacheError:
    return CacheError(
        f"KVCache.load: {str(path)!r} must {rule}\n"
        "  hint: load what KVCache.save of the same version of headwise wrote"
    )
