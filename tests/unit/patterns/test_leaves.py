"""Each pattern by itself: what it allows, draws, prints, compares."""

import copy
import dataclasses
import pickle
import subprocess
import sys

import pytest
import torch

from headwise import patterns as named
from headwise.patterns import (
    BlockWindow,
    Causal,
    Dense,
    Documents,
    Fixed,
    Full,
    GlobalBlocks,
    GlobalTokens,
    KeyMask,
    Lengths,
    Pattern,
    PerHead,
    Prefix,
    RandomBlocks,
    Strided,
    Tiles,
    Window,
    bigbird,
    sliding_causal,
)

DRAWN = [
    (Full(), "■■■■\n■■■■\n■■■■"),
    (Causal(), "■■··\n■■■·\n■■■■"),
    (Window(1, 0), "■■··\n·■■·\n··■■"),
    (Window(0, 1), "·■■·\n··■■\n···■"),
    (Window(None, 0), "■■··\n■■■·\n■■■■"),
    (Window(0, None), "·■■■\n··■■\n···■"),
    (Window(1, 1, dilation=2), "·■·■\n■·■·\n·■·■"),
    (Window(None, None, dilation=2), "·■·■\n■·■·\n·■·■"),
    (Window(0, 0), "·■··\n··■·\n···■"),
    (Prefix(2), "■■··\n■■··\n■■··"),
    (Prefix(0), "····\n····\n····"),
    (Prefix(2) | Causal(), "■■··\n■■■·\n■■■■"),
    (Lengths(3), "■■■·\n■■■·\n■■■·"),
    (Lengths(3, 3), "■■■·\n■■■·\n····"),
    (Lengths([4, 1]), "■■■■\n■■■■\n■■■■\n\n■···\n■···\n■···"),
    (Documents([0, 0, 1, 1]), "■■··\n··■■\n··■■"),
    (Documents([0, 0, -1, 1]), "■■··\n····\n···■"),
    (Documents([0, 1, 0, 1]), "·■·■\n■·■·\n·■·■"),
    (Documents([5, 7, 7, 5], [7, 7, 5, -1]), "■■··\n■■··\n··■·"),
    (KeyMask([True, False, True, True]), "■·■■\n■·■■\n■·■■"),
    (KeyMask([[1, 1, 0, 0], [0, 0, 1, 1]]), "■■··\n■■··\n■■··\n\n··■■\n··■■\n··■■"),
    (Dense([[1, 0, 0, 1], [0, 0, 0, 0], [0, 1, 1, 0]]), "■··■\n····\n·■■·"),
    (Dense([[True], [False], [True]]), "■■■■\n····\n■■■■"),
    (sliding_causal(2), "■■··\n·■■·\n··■■"),
    (~Causal(), "··■■\n···■\n····"),
    (Causal() & ~Window(0, 0), "■···\n■■··\n■■■·"),
]
EACH = [pattern for pattern, _ in DRAWN]


@pytest.mark.parametrize(("pattern", "picture"), DRAWN, ids=lambda x: repr(x)[:40])
def test_three_queries_beside_the_last_of_four_keys(pattern: Pattern, picture: str) -> None:
    assert pattern.draw(3, 4) == picture


@pytest.mark.parametrize("pattern", EACH, ids=repr)
def test_the_printed_form_builds_it_again(pattern: Pattern) -> None:
    again = eval(repr(pattern), dict(vars(named)))
    assert again == pattern
    assert hash(again) == hash(pattern)
    assert repr(again) == repr(pattern)


@pytest.mark.parametrize("pattern", EACH, ids=repr)
def test_copies_are_equal_and_of_the_same_class(pattern: Pattern) -> None:
    """B100: no part is lost on the way."""
    for again in (copy.copy(pattern), copy.deepcopy(pattern), pickle.loads(pickle.dumps(pattern))):
        assert type(again) is type(pattern)
        assert again == pattern
        assert again.draw(3, 4) == pattern.draw(3, 4)


def test_different_patterns_differ() -> None:
    for number, pattern in enumerate(EACH):
        assert all(pattern != other for other in EACH[number + 1 :])


@pytest.mark.parametrize("pattern", EACH, ids=repr)
def test_patterns_are_frozen(pattern: Pattern) -> None:
    for field in dataclasses.fields(pattern):  # type: ignore[arg-type]
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(pattern, field.name, 3)


def test_printed_forms() -> None:
    assert repr(Window(2, None)) == "Window(left=2, right=None, dilation=1)"
    assert repr(Lengths(torch.tensor([3, 1]))) == "Lengths(kv_lengths=(3, 1), q_lengths=None)"
    assert repr(Causal() & ~Prefix(2)) == "(Causal() & ~Prefix(length=2))"
    assert repr(~(Causal() | Full())) == "~(Causal() | Full())"
    assert repr(KeyMask(torch.tensor([[1, 0]]))) == "KeyMask(mask=[[True, False]])"


def test_a_pattern_keeps_its_own_numbers() -> None:
    mask = torch.ones(3, 4, dtype=torch.bool)
    pattern = Dense(mask)
    mask[:] = False
    assert pattern.draw(3, 4) == "■■■■\n■■■■\n■■■■"


def test_tensors_of_any_integer_dtype_compare_by_content() -> None:
    ids = torch.tensor([0, 0, 1])
    assert Documents(ids.to(torch.int32)) == Documents(ids) == Documents([0, 0, 1])
    assert Dense(torch.tensor([[1.0, 0.0]])) == Dense([[True, False]])
    assert KeyMask(ids == 0) == KeyMask([1, 1, 0])


def test_a_hash_survives_a_journey_to_another_process() -> None:
    """String hashes differ between processes; equal patterns must not."""
    pattern = Dense([[True, False]]) & Documents([0, 1])
    hash(pattern)
    program = (
        "import pickle, sys\n"
        "from headwise.patterns import Dense, Documents\n"
        "given = pickle.loads(bytes.fromhex(sys.argv[1]))\n"
        "own = Dense([[True, False]]) & Documents([0, 1])\n"
        "assert given == own\n"
        "assert hash(given) == hash(own)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, pickle.dumps(pattern).hex()],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_cumulative_lengths() -> None:
    assert Documents.from_cu_seqlens([0, 2, 2, 5]) == Documents([0, 0, 2, 2, 2])
    pair = Documents.from_cu_seqlens(torch.tensor([0, 1, 3]), torch.tensor([0, 2, 4]))
    rows = [[True, True, False, False], [False, False, True, True], [False, False, True, True]]
    assert pair.dense(3, 4, q_offset=0).tolist() == rows


def test_windows_count_as_their_makers_say() -> None:
    """B34: neighbours each side without the query; the causal preset counts keys with it."""
    rows = sliding_causal(4).dense(6, 6).sum(1).tolist()
    assert rows == [1, 2, 3, 4, 4, 4]
    assert (Causal() & Window(4, 0)).dense(6, 6).sum(1).tolist() == [1, 2, 3, 4, 5, 5]


def test_offsets_per_sample() -> None:
    found = Causal().dense(1, 4, torch.tensor([0, 2]), 0)
    assert found.shape == (2, 1, 1, 4)
    assert found[:, 0, 0].sum(-1).tolist() == [1, 3]
    rings = Causal().dense(1, 4, 5, torch.tensor([0, 4]))
    assert rings[:, 0, 0].sum(-1).tolist() == [4, 2]


def test_samples_and_heads_that_differ() -> None:
    mask = torch.rand(2, 3, 4, 5) < 0.5
    both = Dense(mask) & Lengths([5, 2])
    assert (both.batch_size, both.num_heads) == (2, 3)
    assert both.dense(4, 5).shape == (2, 3, 4, 5)
    assert torch.equal(both.sample(1, 2).dense(4, 5), both.dense(4, 5)[1, 2])


@pytest.mark.parametrize(
    "pattern",
    [
        *(Full(), Causal(), Window(2, 2), Lengths([3, 1]), Prefix(2), Strided(3), Fixed(3)),
        *(GlobalTokens(0), GlobalTokens([[True], [False]]), BlockWindow(2, 1, None), bigbird(2)),
        *(GlobalBlocks(2, 1, 1), RandomBlocks(2, 1, 0, length=0), PerHead([Causal(), bigbird(3)])),
    ],
    ids=repr,
)
@pytest.mark.parametrize(("q_len", "kv_len"), [(0, 4), (4, 0), (0, 0)])
def test_nothing_to_draw(pattern: Pattern, q_len: int, kv_len: int) -> None:
    assert pattern.dense(q_len, kv_len).shape[-2:] == (q_len, kv_len)
    assert set(pattern.draw(q_len, kv_len)) <= {"\n"}


@pytest.mark.parametrize(
    "pattern",
    [
        *(Lengths([]), KeyMask(torch.ones(0, 4)), Prefix(torch.tensor([], dtype=torch.int64))),
        *(GlobalTokens(torch.ones(0, 4) > 0), Tiles(torch.ones(0, 1, 2, 2) > 0, 2)),
    ],
    ids=repr,
)
def test_no_samples(pattern: Pattern) -> None:
    assert pattern.batch_size == 0
    assert pattern.dense(3, 4).shape == (0, 1, 3, 4)
    assert (pattern & Causal()).dense(3, 4).shape == (0, 1, 3, 4)
