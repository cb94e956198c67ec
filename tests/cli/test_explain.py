"""``headwise explain`` for one call: what it prints, as JSON, drawn, and every wrong input."""

import json
from dataclasses import fields

import pytest
import torch

import headwise as hw
from headwise.cli.drawing import drawn
from headwise.ops import Plan, explain_sizes
from headwise.patterns import parse
from tests.cli.typed import assert_refused, typed

PATTERN = "causal & window(511, 0) | global(4)"


def test_it_prints_what_the_library_says() -> None:
    result = typed("explain", "--pattern", PATTERN, "--length", "65536", "--backward")
    assert (result.exit_code, result.stderr) == (0, "")
    title, header, *rows = result.stdout.splitlines()
    assert title == (
        "batch 1 · heads 12 · kv heads 12 · queries 65,536 · keys 65,536 · head dim 64"
    )
    assert header.split() == ["attend", "float32,", "with", "gradients"]
    plan = explain_sizes(1, 12, 12, 65_536, 65_536, 64, pattern=parse(PATTERN), backward=True)
    wanted = [("pattern", repr(parse(PATTERN))), *plan.rows()]
    assert [row.split() for row in rows] == [f"{name} {text}".split() for name, text in wanted]


def test_json_holds_every_field() -> None:
    words = ("--queries", "1", "--keys", "4096", "--heads", "32", "--kv-heads", "8")
    result = typed("explain", "--pattern", "causal", *words, "--dtype", "bfloat16", "--json")
    found = json.loads(result.stdout)
    assert {field.name for field in fields(Plan)} < set(found)
    assert found["sizes"] == {
        "batch": 1,
        "heads": 32,
        "kv_heads": 8,
        "queries": 1,
        "keys": 4096,
        "head_dim": 64,
    }
    plan = explain_sizes(1, 32, 8, 1, 4096, 64, pattern=hw.Causal(), dtype=torch.bfloat16)
    assert (found["flops"], found["bytes"], found["dtype"]) == (plan.flops, plan.bytes, "bfloat16")
    assert found["pattern"] == "Causal()"
    assert found["expected_seconds"] == plan.expected_seconds
    assert found["drawing"] is None


def test_short_patterns_are_drawn_pair_by_pair() -> None:
    result = typed("explain", "--pattern", "causal", "--queries", "2", "--keys", "4", "--draw")
    assert result.stdout.splitlines()[-3:] == [
        "2 queries (down) × 4 keys (across): ■ may attend, · may not",
        "■■■·",
        "■■■■",
    ]


def test_the_drawing_is_in_the_json() -> None:
    result = typed("explain", "--pattern", "causal", "--length", "2", "--draw", "--json")
    assert json.loads(result.stdout)["drawing"][1:] == ["■·", "■■"]


def test_long_patterns_are_drawn_at_a_scale() -> None:
    title, scale, *lines = drawn(parse("causal & window(19, 0) | global(0)"), 100, 100).splitlines()
    assert title == "100 queries (down) × 100 keys (across)"
    assert scale == "each sign is 2 queries × 2 keys: ■ all allowed, ▒ some, · none"
    assert len(lines) == len(lines[0]) == 50
    assert lines[0] == "■" + "▒" * 49
    assert lines[20] == "▒·········▒" + "■" * 9 + "▒" + "·" * 29
    assert lines[49] == "▒" + "·" * 38 + "▒" + "■" * 9 + "▒"


def test_very_long_patterns_are_drawn_by_tiles() -> None:
    _, scale, *lines = drawn(parse("causal"), 65_536, 65_536).splitlines()
    assert scale.startswith("each sign is 1,152 queries × 1,024 keys:")
    assert len(lines[0]) == 64
    assert lines[0] == "▒▒" + "·" * 62
    assert lines[-1] == "■" * 63 + "▒"


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("per_head(causal, full)", ", head 0 of 2"),
        ("lengths([1, 2])", ", sample 0 of 2"),
        ("per_head(lengths([1, 2]), full)", ", sample 0 of 2, head 0 of 2"),
        ("per_head(causal)", ""),
    ],
)
def test_what_is_not_drawn_is_said(pattern: str, says: str) -> None:
    title = drawn(parse(pattern), 2, 2).splitlines()[0]
    assert title == f"2 queries (down) × 2 keys (across){says}: ■ may attend, · may not"


def test_one_of_each_is_singular() -> None:
    title, sign = drawn(hw.Causal(), 1, 1).splitlines()
    assert (title, sign) == ("1 query (down) × 1 key (across): ■ may attend, · may not", "■")
    assert drawn(hw.Causal(), 1, 100).splitlines()[1].startswith("each sign is 1 query × 2 keys:")


def test_the_title_is_one_line_at_any_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    words = ("--length", "65536", "--batch", "1000", "--heads", "4096", "--head-dim", "128")
    assert typed("explain", *words).stdout.splitlines()[0].endswith("head dim 128")


@pytest.mark.parametrize("words", [("--queries", "0"), ("--head-dim", "0"), ("--batch", "0")])
def test_what_a_backend_refuses_is_one_row(words: tuple[str, ...]) -> None:
    rows = typed("explain", "--length", "8", *words).stdout.splitlines()
    refused = [row.split()[1] for row in rows if row.startswith(" not ")]
    assert refused == ["flex", "sdpa"]
    assert next(row for row in rows if row.startswith(" not flex ")).endswith("; a size is zero")


def test_nothing_is_drawn_of_nothing() -> None:
    assert drawn(hw.Causal(), 0, 3) == "0 queries (down) × 3 keys (across): nothing to draw"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "say how many tokens: --length N, or --queries N and --keys N"),
        (("--queries", "3"), "say how many tokens: --length N, or --queries N and --keys N"),
        (
            ("--length", "9", "--pattern", "causal & windw(1, 2)"),
            "--pattern: at character 10, 'windw' is no pattern; is it window? there are full,",
        ),
        (("--length", "9", "--pattern", ""), "--pattern: at character 1, found the end"),
        (
            ("--length", "9", "--pattern", "window(-1, 0)"),
            "--pattern: at character 1, Window: left must be an int of at least 0, or None, got -1",
        ),
        (
            ("--length", "9", "--pattern", "per_head(causal, full)"),
            "--pattern: the pattern must tell apart as many heads as the call has, or 1, "
            "got 2 for 12; "
            "build the pattern for the heads of this call",
        ),
        (
            ("--length", "9", "--pattern", "documents([0, 0])"),
            "--pattern: Documents: queries stand at positions 0 to 8, but document numbers are "
            "given for 0 to 1",
        ),
        (("--length", "9", "--kv-heads", "5"), "kv_heads must divide q_heads, got 5 and 12"),
        (("--length", "9", "--lang", "zh"), "--lang is for --variants"),
        (
            ("--variants", "--heads", "3", "--draw"),
            "--variants takes --length, --lang and --json, but not --heads, --draw",
        ),
        (("--variants", "--length", "9"), "--variants measures 256 to 16,384 tokens, not 9"),
    ],
)
def test_wrong_inputs_are_one_line(words: tuple[str, ...], says: str) -> None:
    assert_refused(typed("explain", *words), 2, f"headwise explain: {says}")


@pytest.mark.parametrize(
    "words", [("--length", "-1"), ("--length", "9", "--dtype", "int8"), ("--lang", "fr")]
)
def test_options_out_of_range(words: tuple[str, ...]) -> None:
    result = typed("explain", *words)
    assert result.exit_code == 2
    assert result.stdout == ""


def test_help_ends_with_the_exit_codes() -> None:
    shown = typed("explain", "--help")
    assert shown.exit_code == 0
    assert " ".join(shown.stdout.split()).endswith("the reader of the output went away")
