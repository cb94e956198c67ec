"""The whole text of every refusal of a pattern."""

from collections.abc import Callable

import pytest
import torch

from headwise import PatternError
from headwise.patterns import (
    Causal,
    Dense,
    Documents,
    KeyMask,
    Lengths,
    Prefix,
    Window,
    sliding_causal,
)

pytestmark = pytest.mark.usefixtures("plain_calls")

WINDOW_HINT = (
    "left and right count neighbours without the query itself; "
    "patterns.sliding_causal(n) counts keys, itself included"
)
COUNT = "must be an int or 1-D integers (batch,), got"
MASK = (
    "a mask must be boolean, or numbers that are all 0 or 1, got torch.float32 with other numbers"
)
MASK_HINT = "True or 1 means may attend; numbers to add to the scores go into bias="
DENSE = (
    "Dense: mask must be (q_len, kv_len) or four dimensions that broadcast to "
    "(batch, heads, q_len, kv_len), got"
)
DENSE_HINT = (
    "say which axis is missing with mask[:, None] or mask[None]; "
    "a padding mask (batch, kv_len) is KeyMask(mask), in a layer kv_mask="
)
IDS = "must be integers of shape (length,) or (batch, length), got shape"
IDS_HINT = "give every token the number of its document, padding a negative one"
CUMULATIVE = "Documents.from_cu_seqlens: q must start at 0 and never fall, got"
CUMULATIVE_HINT = "give (0, end of the first document, …, total length)"
CASES: list[tuple[Callable[[], object], str, str]] = [
    (
        lambda: Window(-1, 0),
        "Window: left must be an int of at least 0, or None, got -1",
        WINDOW_HINT,
    ),
    (
        lambda: Window(1, 2.5),  # type: ignore[arg-type]
        "Window: right must be an int of at least 0, or None, got 2.5",
        WINDOW_HINT,
    ),
    (
        lambda: Window(True, 0),
        "Window: left must be an int of at least 0, or None, got True",
        WINDOW_HINT,
    ),
    (
        lambda: Window(1, 1, dilation=0),
        "Window: dilation must be an int of at least 1, got 0",
        "1 takes every neighbour, 2 every second one",
    ),
    (
        lambda: sliding_causal(0),
        "sliding_causal: window must be an int of at least 1, got 0",
        "the window counts the query's own key; without a window use Causal()",
    ),
    (lambda: Prefix(-1), "Prefix: length must not be negative, got -1", "0 means no token"),
    (
        lambda: Lengths([3, -2]),
        "Lengths: kv_lengths must not be negative, got (3, -2)",
        "0 means no token",
    ),
    (
        lambda: Prefix(torch.tensor([1.5])),
        f"Prefix: length {COUNT} shape (1,) torch.float32",
        "give one number of tokens for all samples, or one per sample",
    ),
    (
        lambda: Lengths(3, torch.ones(2, 2, dtype=torch.int64)),
        f"Lengths: q_lengths {COUNT} shape (2, 2) torch.int64",
        "give one number of tokens for all samples, or one per sample",
    ),
    (
        lambda: Lengths([1, 2], [1, 2, 3]),
        "Lengths: kv_lengths and q_lengths must name the same samples, got 2 and 3",
        "give one length per sample in both",
    ),
    (
        lambda: Documents(torch.tensor([0.5])),
        f"Documents: ids {IDS} (1,) torch.float32",
        IDS_HINT,
    ),
    (
        lambda: Documents([0], torch.zeros(1, 1, 1, dtype=torch.int64)),
        f"Documents: kv_ids {IDS} (1, 1, 1) torch.int64",
        IDS_HINT,
    ),
    (
        lambda: Documents(torch.zeros(2, 3).long(), torch.zeros(4, 3).long()),
        "Documents: ids and kv_ids must name the same samples, got [2, 4]",
        "give one row of document numbers per sample in both",
    ),
    (lambda: Documents.from_cu_seqlens([1, 2]), f"{CUMULATIVE} [1, 2]", CUMULATIVE_HINT),
    (lambda: Documents.from_cu_seqlens([0, 3, 2]), f"{CUMULATIVE} [0, 3, 2]", CUMULATIVE_HINT),
    (lambda: Dense(torch.full((2, 2), 0.5)), f"Dense: {MASK}", MASK_HINT),
    (lambda: KeyMask(torch.full((2, 2), -1e4)), f"KeyMask: {MASK}", MASK_HINT),
    (lambda: Dense(torch.ones(3, 4, 5)), f"{DENSE} (3, 4, 5)", DENSE_HINT),
    (lambda: Dense(torch.ones(3)), f"{DENSE} (3,)", DENSE_HINT),
    (
        lambda: KeyMask(torch.ones(2, 1, 5)),
        "KeyMask: mask must be (batch, kv_len) or (kv_len,), got (2, 1, 5)",
        "a mask over pairs of queries and keys is Dense(mask)",
    ),
    (
        lambda: Lengths([1, 2]) & Lengths([1, 2, 3]),
        "patterns joined by & or | must agree on the number of samples, got 2 and 3",
        "build both for the same samples, or let one of them hold for all",
    ),
    (
        lambda: Dense(torch.ones(1, 2, 1, 1)) | Dense(torch.ones(1, 3, 1, 1)),
        "patterns joined by & or | must agree on the number of heads, got 2 and 3",
        "build both for the same heads, or let one of them hold for all",
    ),
    (
        lambda: KeyMask(torch.ones(20)).dense(10, 17),
        "KeyMask: the mask must have one entry per key, got 20 for 17 keys",
        "cut or extend the mask yourself, cached keys included",
    ),
    (
        lambda: Dense(torch.ones(10, 20)).dense(10, 17),
        "Dense: the mask must broadcast to 10 queries and 17 keys, got 10 and 20",
        "cut the mask to the call; a mask over keys alone is KeyMask(mask), in a layer kv_mask=",
    ),
    (
        lambda: Documents([0, 0, 1]).dense(2, 4),
        "Documents: queries stand at positions 2 to 3, but document numbers are given for 0 to 2",
        "give one number per absolute position, cached tokens included; queries numbered apart "
        "from the keys need q_offset=0",
    ),
    (
        lambda: Documents([0, 0, 1]).dense(1, 3, 0, -1),
        "Documents: keys stand at positions -1 to 1, but document numbers are given for 0 to 2",
        "give one number per absolute position, cached tokens included; queries numbered apart "
        "from the keys need q_offset=0",
    ),
    (
        lambda: Causal().dense(2, 3, torch.tensor([0.5])),
        f"q_offset: {COUNT} shape (1,) torch.float32".replace("got shape", "got shape"),
        "give one number of tokens for all samples, or one per sample",
    ),
    (
        lambda: Causal().dense(2, 3, [0, 1], [0, 1, 2]),
        "q_offset and kv_offset: must name the same samples, got 2 and 3",
        "give one position per sample in both, or an int for all",
    ),
    (
        lambda: Lengths([1, 2, 3]).dense(2, 3, [0, 1]),
        "Lengths: offsets are given for 2 samples, but the pattern holds 3",
        "give one offset per sample of the pattern, or one int for all",
    ),
]


@pytest.mark.parametrize(("wrong", "problem", "hint"), CASES, ids=[c[1][:60] for c in CASES])
def test_refusal(wrong: Callable[[], object], problem: str, hint: str) -> None:
    with pytest.raises(PatternError) as caught:
        wrong()
    assert str(caught.value) == f"{problem}\n  hint: {hint}"


@pytest.mark.parametrize("joined", [lambda: Causal() and Window(1, 1), lambda: not Causal()])
def test_python_words_are_refused(joined: Callable[[], object]) -> None:
    with pytest.raises(PatternError) as caught:
        joined()
    wanted = "a pattern has no truth value: use & | ~ to join patterns, not and, or, not"
    assert str(caught.value) == wanted


@pytest.mark.parametrize("other", [3, None, "causal", torch.ones(2, 2, dtype=torch.bool)])
def test_only_patterns_join_patterns(other: object) -> None:
    with pytest.raises(TypeError):
        Causal() & other  # type: ignore[operator]
    with pytest.raises(TypeError):
        other | Causal()  # type: ignore[operator]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Prefix([2.7]),
        lambda: Prefix(2.5),
        lambda: Lengths([1, 2.5]),
        lambda: Prefix(True),
        lambda: Prefix("3"),
        lambda: sliding_causal(2.5),  # type: ignore[arg-type]
        lambda: Causal().dense(2, 3, [0.5]),  # type: ignore[list-item]
        lambda: Causal().dense(2, 3, 1.5),  # type: ignore[arg-type]
        lambda: Lengths(torch.tensor([True, False])),
        lambda: Dense(torch.tensor([[float("nan")]])),
    ],
)
def test_a_fraction_or_a_flag_is_no_count(wrong: Callable[[], object]) -> None:
    with pytest.raises(PatternError, match=r"must be|all 0 or 1"):
        wrong()
