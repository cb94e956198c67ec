"""Frequencies that follow the length of the text: ``dynamic`` and ``longrope``."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from headwise import ShapeError
from headwise.positions import Rotary
from tests.support.budget import assert_same_bits

ORIGINAL = 8
DYNAMIC: dict[str, Any] = {
    "rope_type": "dynamic",
    "factor": 4.0,
    "original_max_position_embeddings": ORIGINAL,
}
LONG: dict[str, Any] = {
    "rope_type": "longrope",
    "factor": 4.0,
    "short_factor": [1.0, 1.5, 2.0, 2.5],
    "long_factor": [3.0, 4.0, 5.0, 6.0],
    "original_max_position_embeddings": ORIGINAL,
}
on_kinds = pytest.mark.parametrize("scaling", [DYNAMIC, LONG], ids=lambda one: one["rope_type"])


def test_only_these_kinds_depend_on_the_length() -> None:
    assert Rotary(8, scaling=DYNAMIC).depends_on_length
    assert Rotary(8, scaling=LONG).depends_on_length
    plain = Rotary(8, scaling={"rope_type": "linear", "factor": 2.0})
    assert not plain.depends_on_length
    assert plain.at_length(100) is plain


def test_frequencies_by_hand() -> None:
    """Base 16: 1 and 1/4, by its own factor where the text is short, by the other where long."""
    long = Rotary(4, 16.0, {**LONG, "short_factor": [2.0, 4.0], "long_factor": [5.0, 10.0]})
    assert long.inv_freq.tolist() == [0.5, 0.0625]
    assert long.at_length(ORIGINAL).inv_freq.tolist() == [0.5, 0.0625]
    far = long.at_length(ORIGINAL + 1).inv_freq
    torch.testing.assert_close(far, torch.tensor([0.2, 0.025]))
    # At 24 tokens the base is 16 * (4 * 24 / 8 - 3) ** 2 = 1296, whose root is 36.
    stretched = Rotary(4, 16.0, DYNAMIC).at_length(24).inv_freq
    torch.testing.assert_close(stretched, torch.tensor([1.0, 1 / 36]))


@on_kinds
@pytest.mark.parametrize("interleaved", [False, True])
def test_each_sample_follows_its_own_length(scaling: Any, interleaved: bool) -> None:
    """A long sample beside a short one changes nothing, however the batch is put together."""
    rotary = Rotary(8, scaling=scaling, interleaved=interleaved)
    x = torch.randn(3, 2, 5, 8)
    lengths = [5, 8, 21]
    found = rotary(x, 2, length=torch.tensor(lengths))
    for sample, length in enumerate(lengths):
        alone = x[sample : sample + 1]
        torch.testing.assert_close(found[sample], rotary(alone, 2, length=length)[0])
        torch.testing.assert_close(found[sample], rotary.at_length(length)(alone, 2)[0])


@on_kinds
def test_without_a_length_the_text_ends_with_x(scaling: Any) -> None:
    rotary, x = Rotary(8, scaling=scaling), torch.randn(2, 2, 5, 8)
    assert_same_bits(rotary(x, 9), rotary(x, 9, length=14))
    offsets = torch.tensor([0, 9])
    torch.testing.assert_close(rotary(x, offsets), rotary(x, offsets, length=torch.tensor([5, 14])))


@on_kinds
def test_no_call_changes_the_next_one(scaling: Any) -> None:
    """Transformers keeps the stretched frequencies of a long text until a short one comes."""
    rotary, x = Rotary(8, scaling=scaling), torch.randn(1, 2, 10, 8)
    before = rotary(x)
    rotary(torch.randn(1, 2, 30, 8))
    assert_same_bits(rotary(x), before)


@on_kinds
def test_frequencies_for_good(scaling: Any) -> None:
    settled = Rotary(8, scaling=scaling).at_length(21)
    assert not settled.depends_on_length
    assert repr(settled).endswith(").at_length(21)")
    again = eval(repr(settled))
    x = torch.randn(1, 2, 5, 8)
    assert_same_bits(again(x), settled(x))
    assert_same_bits(settled(x, length=4), settled(x))
    assert settled.at_length(3) is settled


def test_a_length_is_ignored_where_none_is_needed() -> None:
    x = torch.randn(1, 2, 5, 8)
    assert_same_bits(Rotary(8)(x, length=10_000), Rotary(8)(x))


@on_kinds
def test_lengths_are_checked_as_offsets_are(scaling: Any) -> None:
    with pytest.raises(ShapeError) as refusal:
        Rotary(8, scaling=scaling)(torch.ones(2, 2, 5, 8), length=torch.tensor([3]))
    assert str(refusal.value) == (
        "Rotary: length must hold one integer per sample, (2,)\n"
        "  x       (2, 2, 5, 8) torch.float32 cpu\n"
        "  length  (1,) torch.int64 cpu\n"
        "  hint: the samples are the leading dimensions of x; an int speaks of all of them"
    )


def test_texts_of_other_lengths_in_other_threads_change_nothing() -> None:
    """The table of one call was read by the call of another thread."""
    rotary = Rotary(
        8,
        scaling={
            "rope_type": "dynamic",
            "factor": 2.0,
            "original_max_position_embeddings": 4,
        },
    )
    inputs = [torch.randn(1, 1, length, 8) for length in (3, 40)]
    wanted = [rotary(x) for x in inputs]

    def all_right(which: int) -> bool:
        return all(torch.equal(rotary(inputs[which]), wanted[which]) for _ in range(400))

    with ThreadPoolExecutor(2) as threads:
        assert all(threads.map(all_right, (0, 1)))
