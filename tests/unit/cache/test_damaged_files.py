"""Files of caches that are damaged or made up: refused, and never run."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

import headwise as hw
from headwise.ops import LinearState
from tests.support.budget import assert_same_bits
from tests.support.cache_tokens import tokens

KINDS: dict[str, dict[str, Any]] = {
    "growing": {},
    "fixed": {"capacity": 60},
    "window": {"window": 4, "rollback": 1},
    "kept": {"window": 4, "keep_first": 2},
}
MISFIT = "must describe its tensors, and does not"


def filled(kind: str) -> hw.KVCache:
    cache = hw.KVCache(**KINDS[kind] if kind != "paged" else {"pool": hw.PagePool()})
    for layer in range(2):
        for count in (3, 40, 1):
            cache.attend(*tokens(count), layer=layer, q_lengths=[count, min(2, count)])
    cache.set_state(7, LinearState(*(torch.ones(2, 2, size) for size in (1, 2, 3))), length=3)
    return cache


def changed(
    cache: hw.KVCache, path: Path, change: Callable[[dict[str, Any], dict[str, Tensor]], str | None]
) -> None:
    """Write a cache with another description, as of version 1, which has no sum over it."""
    cache.save(path)
    with safe_open(path, "pt") as file:
        metadata = dict(file.metadata())
        tensors = {name: file.get_tensor(name) for name in list(file.keys())}
    said = json.loads(metadata["cache"])
    text = change(said, tensors)
    metadata |= {"version": "1", "cache": text or json.dumps(said)}
    del metadata["sum"]
    save_file(tensors, path, metadata)


def test_files_of_version_1_are_read(tmp_path: Path) -> None:
    cache, path = filled("growing"), tmp_path / "cache"

    def as_before(said: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        said["states"]["7"]["form"]["named"] = ["headwise.ops.linear.state", "LinearState"]

    changed(cache, path, as_before)
    loaded = hw.KVCache.load(path)
    assert isinstance(loaded.state(7), LinearState)
    for found, wanted in zip(loaded.state(7), cache.state(7), strict=True):
        assert_same_bits(found, wanted)
    assert_same_bits(loaded.stored().key[0], cache.stored().key[0])


def test_a_file_names_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cache"

    def refuse(*names: object) -> None:
        raise AssertionError(f"a file imported {names}")

    for named in ("Step", ["headwise.cli.__main__", "main"], ["headwise.nn", "Step"]):

        def name(said: dict[str, Any], tensors: dict[str, Tensor], named: object = named) -> None:
            said["states"]["7"]["form"] = {"named": named, "parts": []}

        changed(filled("growing"), path, name)
        monkeypatch.setattr("importlib.import_module", refuse)
        with pytest.raises(hw.CacheError, match=r"there is no state '.*' but LinearState"):
            hw.KVCache.load(path)
        monkeypatch.undo()


CHANGES: dict[str, Callable[[dict[str, Any], dict[str, Tensor]], Any]] = {
    "no tensor": lambda _, tensors: tensors.__delitem__("layers.0.1"),
    "more tensors": lambda _, tensors: tensors.update({"x": torch.ones(1)}),
    "batch": lambda said, _: said["layers"]["0"]["given"].__setitem__(0, 3),
    "endless": lambda said, _: said["layers"]["0"]["given"].__setitem__(0, float("inf")),
    "counts": lambda said, _: said["layers"]["0"]["counts"].update(lengths=[44]),
    "more counts": lambda said, _: said["layers"]["0"]["counts"].update(depths=3),
    "dtype": lambda said, _: said["layers"]["0"]["given"].__setitem__(3, ["float32", "float64"]),
    "length": lambda said, _: said["states"]["7"].update(length="x"),
    "kind": lambda said, _: said["kind"].update(color="red"),
    "room": lambda said, _: said["kind"].update(capacity=10**15),
    "page": lambda said, _: said["kind"].update(pool=128 * 10**13),
    "layer": lambda said, _: said["layers"].update({"-3": said["layers"].pop("0")}),
    "part": lambda said, _: said.update(more=1),
    "parts": lambda said, _: said["states"]["7"]["form"].update(parts=["tensor"] * 4),
    "fewer parts": lambda said, _: said["states"]["7"].update(form="tensor"),
    "empty": lambda said, _: said["states"]["7"].update(form=None),
    "json": lambda *_: "{",
    "deep": lambda *_: "[" * 100_000,
    "list": lambda *_: "[]",
}


@pytest.mark.parametrize("change", CHANGES)
def test_files_whose_parts_do_not_fit(change: str, tmp_path: Path) -> None:
    path = tmp_path / "cache"
    changed(filled("growing"), path, CHANGES[change])
    with pytest.raises(hw.CacheError, match=f"{MISFIT}|must have the batch in front"):
        hw.KVCache.load(path)


def test_rows_of_a_state_beside_other_rows(tmp_path: Path) -> None:
    path = tmp_path / "cache"

    def beside(said: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        said["states"] = {"0": {"form": "tensor", "length": 1}}
        for number in range(3):
            del tensors[f"states.7.{number}"]
        tensors["states.0.0"] = torch.ones(5)

    changed(filled("growing"), path, beside)
    with pytest.raises(hw.CacheError, match="layer 0 has a state of 5 samples"):
        hw.KVCache.load(path)


@pytest.mark.parametrize(
    ("kind", "counts"),
    [
        ("growing", {"lengths": [45, 5]}),
        ("growing", {"lengths": [44, -1]}),
        ("growing", {"lengths": 3}),
        ("growing", {"lengths": [44, True]}),
        ("paged", {"lengths": [43, 5]}),
        ("window", {"lengths": 99}),
        ("window", {"starts": 99}),
        ("kept", {"starts": 0}),
        ("kept", {"reached": 99}),
    ],
)
def test_counts_that_do_not_fit(kind: str, counts: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "cache"
    changed(filled(kind), path, lambda said, _: said["layers"]["0"]["counts"].update(counts))
    with pytest.raises(hw.CacheError, match=MISFIT):
        hw.KVCache.load(path)


@pytest.mark.parametrize("kind", [*KINDS, "paged"])
def test_any_byte_of_the_header(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "cache"
    cache = filled(kind)
    cache.save(path)
    whole = path.read_bytes()
    end = 8 + int.from_bytes(whole[:8], "little")
    drawn = random.Random(3)
    refused = 0
    for _ in range(150):
        damaged = bytearray(whole)
        place = drawn.randrange(end)
        damaged[place] ^= 1 << drawn.randrange(8)
        path.write_bytes(damaged)
        try:
            loaded = hw.KVCache.load(path)
        except hw.CacheError:
            refused += 1
            continue
        assert loaded._kind[:-1] == cache._kind[:-1]
        for layer in (0, 1, 7):
            assert loaded.lengths(layer).tolist() == cache.lengths(layer).tolist()
        assert_same_bits(loaded.stored().key[0], cache.stored().key[0])
    assert refused > 100
