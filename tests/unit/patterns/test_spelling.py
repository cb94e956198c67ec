"""Patterns written down and read back."""

import re
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import headwise as hw
from headwise import PatternError
from headwise.cache import masks
from headwise.patterns import Pattern, combine, spelling
from headwise.patterns.every_nth import EveryNth
from headwise.patterns.joining import joined_pattern
from headwise.patterns.residues import ResidueClasses
from headwise.patterns.spelling import read, spell, unknown_kind
from tests.support.settings import Setting
from tests.support.strategies import patterns, settings_of_calls

MASK = torch.tensor([True, False, True])


@given(data=st.data(), setting=settings_of_calls())
def test_reading_gives_back_what_was_written(data: st.DataObject, setting: Setting) -> None:
    pattern = data.draw(patterns(setting))
    assert read(*spell(pattern)) == pattern
    assert unknown_kind(pattern) is None


def test_the_text_holds_no_numbers() -> None:
    pattern = hw.KeyMask(MASK) & hw.Window(1, None) | ~hw.Lengths([2, 3], 4)
    text, numbers, tensors = spell(pattern)
    assert text == ("Either(Both(KeyMask(t0), Window(n0, None, n1)), Not(Lengths(t1, n2)))")
    assert numbers == [1, 1, 4]
    assert [tensor.tolist() for tensor in tensors] == [MASK.tolist(), [2, 3]]


def test_every_kind_can_be_written() -> None:
    def kinds(of: Any) -> set[Any]:
        return {of}.union(*(kinds(kind) for kind in of.__subclasses__()))

    ours = {kind for kind in kinds(Pattern) if kind.__module__.startswith("headwise.")}
    inside = {EveryNth, ResidueClasses, masks.AmongAll, masks._Until}
    assert ours - {Pattern, combine._Pair} - inside == set(spelling._PARTS)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Causal",
        "Causal(",
        "None",
        "n0",
        "t0",
        "Causal()()",
        "Causal(n0)",
        "Prefix(length=n0)",
        "Prefix(n1)",
        "KeyMask(t1)",
        "KeyMask(tx)",
        "Prefix(n0 + n0)",
        "Prefix(3)",
        "Not('Causal()')",
        "Not([Causal()])",
        "Not(n0)",
        "Pattern()",
        "open(n0)",
        "hw.Causal()",
        "__import__('os').getcwd()",
        "(lambda: Causal())()",
        "Not(" * 2000 + "Causal()" + ")" * 2000,
    ],
)
def test_nothing_else_is_read(text: str) -> None:
    with pytest.raises(PatternError) as caught:
        read(text, [3], [MASK])
    assert str(caught.value) == (
        f"no pattern can be read from {text[:200]!r}\n"
        "  hint: only what headwise itself wrote down, with its numbers and tensors, can be read"
    )


def test_numbers_are_checked_when_they_are_read() -> None:
    with pytest.raises(PatternError, match="must not be negative"):
        read("Prefix(n0)", [-1], [])
    with pytest.raises(PatternError, match="must not be negative"):
        read("Lengths(t0, None)", [], [torch.tensor([2, -3])])


class Own(Pattern):
    def _allows(self, q_pos: torch.Tensor, kv_pos: torch.Tensor) -> torch.Tensor:
        return kv_pos <= q_pos


def test_kinds_of_others_are_refused() -> None:
    assert unknown_kind(hw.Causal() & ~Own()) == "Own"
    with pytest.raises(PatternError) as caught:
        spell(hw.Causal() & ~Own())
    assert str(caught.value) == (
        "Own: a pattern that headwise does not know cannot be written down\n"
        "  hint: spell it out with Dense(pattern.dense(q_len, kv_len))"
    )


def fixed_slots(text: str, tensors: Sequence[torch.Tensor]) -> set[int]:
    """Return which tensors are the same for all samples: positions, and shapes of tiles."""
    shapes = re.findall(r"Tiles\(t\d+, \(n\d+, n\d+\), t(\d+)", text)
    tokens = [int(slot) for slot in re.findall(r"GlobalTokens\(t(\d+)\)", text)]
    positions = {slot for slot in tokens if tensors[slot].dtype == torch.int64}
    return positions | {int(slot) for slot in shapes}


@given(data=st.data(), setting=settings_of_calls(), copies=st.integers(1, 3))
def test_joined_samples_see_what_they_saw(
    data: st.DataObject, setting: Setting, copies: int
) -> None:
    pattern = data.draw(patterns(setting))
    text, numbers, tensors = spell(pattern)
    alike = joined_pattern(text, tensors, [None] * len(tensors), copies, setting.batch)
    last = [None if n in fixed_slots(text, tensors) else t.ndim for n, t in enumerate(tensors)]
    stacked = [
        tensor if dim is None else torch.stack([tensor] * copies, -1)
        for tensor, dim in zip(tensors, last, strict=True)
    ]
    apart = joined_pattern(text, stacked, last, copies, setting.batch)
    sizes = (setting.batch, setting.heads, setting.q_len, setting.kv_len)
    wanted = pattern.dense(*sizes[2:], **setting.offsets).expand(sizes).repeat(copies, 1, 1, 1)
    offsets = {
        name: offset.repeat(copies) if isinstance(offset, torch.Tensor) else offset
        for name, offset in setting.offsets.items()
    }
    for tensors in (alike, apart):
        found = read(text, numbers, tensors).dense(*sizes[2:], **offsets)  # type: ignore[arg-type]
        assert torch.equal(found.expand_as(wanted), wanted)


def test_subclasses_of_tensors_are_read_like_tensors() -> None:
    class Marked(torch.Tensor):
        pass

    assert hw.KeyMask(MASK.as_subclass(Marked)) == hw.KeyMask(MASK)
    assert hw.Lengths(torch.tensor([2, 3]).as_subclass(Marked)) == hw.Lengths([2, 3])


def test_traced_tensors_are_neither_compared_nor_hashed() -> None:
    def hashed(mask: torch.Tensor) -> torch.Tensor:
        hash(hw.KeyMask(mask))
        return mask

    with pytest.raises(PatternError) as caught:
        torch.vmap(hashed)(MASK[None])
    assert str(caught.value) == (
        "a pattern made of tensors that are being traced cannot be compared or hashed\n"
        "  hint: build it outside the compiled or transformed function to keep it"
    )


@pytest.mark.parametrize("build", [hw.KeyMask, hw.Dense])
def test_traced_masks_must_be_boolean(build: type[Pattern]) -> None:
    def built(mask: torch.Tensor) -> torch.Tensor:
        build(mask)  # type: ignore[call-arg]
        return mask

    with pytest.raises(PatternError) as caught:
        torch.vmap(built)(torch.ones(1, 2, 2))
    assert str(caught.value) == (
        f"{build.__name__}: a mask that is being traced must be boolean, got torch.float32\n"
        "  hint: its numbers cannot be checked there; pass mask != 0"
    )


def test_traced_ends_of_documents_are_refused() -> None:
    def built(ends: torch.Tensor) -> torch.Tensor:
        hw.Documents.from_cu_seqlens(ends)
        return ends

    with pytest.raises(PatternError) as caught:
        torch.vmap(built)(torch.tensor([[0, 2, 5]]))
    assert str(caught.value) == (
        "Documents.from_cu_seqlens: q is being traced, so the number of tokens is not known\n"
        "  hint: build the pattern outside, or give Documents(ids) a number per token"
    )


def test_sides_of_tiles_that_earlier_versions_wrote_down() -> None:
    """Up to 0.6 they were a tensor, as graphs saved then still hold them."""
    tiles, sides = torch.ones(2, 3) > 0, torch.tensor([4, 2])
    assert read("Tiles(t0, t1, None, None)", [], [tiles, sides]) == hw.patterns.Tiles(tiles, (4, 2))
    assert spell(hw.patterns.Tiles(tiles, (4, 2))).text == "Tiles(t0, (n0, n1), None, None)"
