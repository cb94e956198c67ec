"""Patterns as text: what every spelling means, that ``repr`` reads back, and every refusal."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import headwise as hw
from headwise import PatternError
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
    longformer,
    names,
    parse,
    sliding_causal,
)
from tests.support.settings import Setting
from tests.support.strategies import patterns

MEANT: dict[str, Pattern] = {
    "causal & window(511, 0) | global(4)": Causal() & Window(511, 0) | GlobalTokens(4),
    "global(4) | causal & window(511, 0)": GlobalTokens(4) | Causal() & Window(511, 0),
    "causal & (window(5, 0) | global(4))": Causal() & (Window(5, 0) | GlobalTokens(4)),
    "~causal & full": ~Causal() & Full(),
    "~(causal & full)": ~(Causal() & Full()),
    "~~causal": ~~Causal(),
    "full | full | causal": (Full() | Full()) | Causal(),
    "\n causal\t&full ": Causal() & Full(),
    "window(1, none, dilation=2)": Window(1, None, dilation=2),
    "window(right=3, left=1)": Window(1, 3),
    "window(1_000, 0)": Window(1000, 0),
    "WINDOW(1, None)": Window(1, None),
    "sliding_causal(256)": sliding_causal(256),
    "SlidingCausal(256)": sliding_causal(256),
    "strided(128)": Strided(128),
    "fixed(128, 8)": Fixed(128, 8),
    "global(0, 4)": GlobalTokens([0, 4]),
    "global([0, 4])": GlobalTokens([0, 4]),
    "global_tokens([true, false])": GlobalTokens([True, False]),
    "GlobalTokens(which=(0, 4))": GlobalTokens([0, 4]),
    "longformer(512, [0])": longformer(512, [0]),
    "longformer(512)": longformer(512),
    "block_window(64, 1, 1)": BlockWindow(64, 1, 1),
    "global_blocks(64, 1, 1)": GlobalBlocks(64, 1, 1),
    "random_blocks(64, 3, 0)": RandomBlocks(64, 3, 0),
    "bigbird(64, 3, 1, 3, 0)": bigbird(64, 3, 1, 3, 0),
    "bigbird(64)": bigbird(64),
    "prefix(10) | causal": Prefix(10) | Causal(),
    "lengths(100)": Lengths(100),
    "lengths([5, 7], [5, 6],)": Lengths([5, 7], [5, 6]),
    "documents([0, 0, 1, -1])": Documents([0, 0, 1, -1]),
    "key_mask([[true, false]])": KeyMask([[True, False]]),
    "dense([[1, 0], [1, 1]])": Dense([[1, 0], [1, 1]]),
    "tiles([[true, false]], block=(2, 3))": Tiles([[True, False]], (2, 3)),
    "per_head(causal, window(4, 4))": PerHead([Causal(), Window(4, 4)]),
    "per_head([causal | full, ~full])": PerHead([Causal() | Full(), ~Full()]),
    "PerHead(patterns=(Causal(),))": PerHead([Causal()]),
}
NAMES = ", ".join(names.KINDS)
MARKS = "names, whole numbers, & | ~ ( ) [ ] , and = are"
REFUSED = [
    ("causal &", 9, "found the end of the text", "here may stand a pattern"),
    ("causal causal", 8, "found 'causal'", "here may stand & or | or the end"),
    ("causal)", 7, "found ')'", "here may stand & or | or the end"),
    ("window(1, 2", 12, "found the end of the text", "here may stand a comma or ')'"),
    ("documents([0,, 1])", 14, "found ','", "here may stand a pattern or a number"),
    ("windw(1, 2)", 1, "'windw' is no pattern", f"is it window? there are {NAMES}"),
    ("not causal", 1, "'not' is no pattern", f"there are {NAMES}"),
    ("__import__('os')", 1, "'__import__' is no pattern", f"there are {NAMES}"),
    ("causal ^ full", 8, "'^' is no part of a pattern", MARKS),
    ("window(1.5, 2)", 9, "'.' is no part of a pattern", MARKS),
    ("causal & 3", 10, "found '3' where a pattern must stand", f"there are {NAMES}"),
    ("3 | causal", 1, "found '3' where a pattern must stand", f"there are {NAMES}"),
    ("~none", 2, "found 'none' where a pattern must stand", f"there are {NAMES}"),
    ("[causal]", 1, "found '[' where a pattern must stand", f"there are {NAMES}"),
    (
        *("window(1)", 1, "window: missing a required argument: 'right'"),
        "it takes window(left, right, dilation=1)",
    ),
    (
        *("causal & window(1, 2, 3, 4)", 10, "window: too many positional arguments"),
        "it takes window(left, right, dilation=1)",
    ),
    ("window(left=1, 2)", 16, "found '2'", "here may stand a named argument"),
    ("window(left=1, left=2)", 16, "'left' is given twice", "give it once"),
    (
        *("full | strided(0)", 8, "Strided: stride must be an int of at least 1, got 0"),
        "1 lets every query see every key",
    ),
    (
        *("documents([[1], [1, 2]])", 1),
        "Documents: ids: numbers must be a tensor, or lists of equal lengths, got [[1], [1, 2]]",
        "torch says: expected sequence of length 1 at dim 1 (got 2)",
    ),
    (
        *(f"window({10**18}, 0)", 8, "a number has 19 digits"),
        "positions and counts have at most 18; none leaves a side without bound",
    ),
    (
        *("torch.empty((3, 3), dtype=torch.bool)", 1),
        "torch.empty: one of the sizes must be 0, got (3, 3)",
        "numbers are written as lists, such as [[0, 1], [1, 1]]",
    ),
]


def test_every_name_is_read() -> None:
    read = {name.lower() for text in MEANT for name in re.findall(r"[a-z_]+", text, re.IGNORECASE)}
    assert read >= set(names.KINDS)


@pytest.mark.parametrize("text", MEANT)
def test_a_text_means_its_pattern(text: str) -> None:
    assert parse(text) == MEANT[text]
    assert parse(repr(MEANT[text])) == MEANT[text]


@given(data=st.data())
def test_every_repr_reads_back(data: st.DataObject) -> None:
    pattern = data.draw(patterns(Setting(2, 3, 5, 7, None, 0)))
    assert parse(repr(pattern)) == pattern


def test_masks_without_keys_read_back() -> None:
    pattern = KeyMask(torch.zeros(2, 0, dtype=torch.bool))
    assert parse(repr(pattern)) == pattern


@pytest.mark.parametrize(
    ("text", "place", "problem", "hint"), REFUSED, ids=[row[0] for row in REFUSED]
)
def test_a_refusal_points_at_its_place(text: str, place: int, problem: str, hint: str) -> None:
    with pytest.raises(PatternError) as refusal:
        parse(text)
    assert str(refusal.value) == (
        f"patterns.parse: at character {place}, {problem}\n"
        f"  {text}\n"
        f"  {' ' * (place - 1)}^\n"
        f"  hint: {hint}"
    )


@pytest.mark.parametrize("text", ["", " \n "])
def test_nothing_to_read(text: str) -> None:
    with pytest.raises(PatternError) as refusal:
        parse(text)
    assert str(refusal.value) == (
        "patterns.parse: at character 1, found the end of the text\n"
        "  hint: here may stand a pattern"
    )


def test_long_texts_are_quoted_around_the_place() -> None:
    text = "causal &\n" * 50 + "wat" + " & full" * 9
    with pytest.raises(PatternError) as refusal:
        parse(text)
    _, quoted, mark, _ = str(refusal.value).splitlines()
    assert quoted == "  … & causal & causal & causal & wat & full & full & full & ful…"
    assert quoted[mark.index("^") :].startswith("wat & full")


@pytest.mark.parametrize("text", ["~" * 999 + "full", "(" * 999, "|".join(["full"] * 66)])
def test_nesting_has_an_end(text: str) -> None:
    with pytest.raises(PatternError, match="more than 64 patterns are joined or nested"):
        parse(text)


def test_sixty_four_joined_patterns_read_back() -> None:
    pattern = parse(" | ".join(["causal", "full"] * 32))
    assert parse(repr(pattern)) == pattern


@pytest.mark.usefixtures("plain_calls")
def test_only_text_is_read() -> None:
    with pytest.raises(PatternError) as refusal:
        parse(hw.Causal())  # type: ignore[arg-type]
    assert str(refusal.value) == (
        "patterns.parse: a pattern is read from a str, got Causal\n"
        "  hint: a pattern that is one already needs no parsing"
    )
