"""``headwise generate --cache KIND``: the text, the bytes, and what is refused."""

from pathlib import Path

import pytest

from tests.cli.test_generate import PROMPT, as_json
from tests.cli.typed import typed

NEW = "40"


@pytest.mark.parametrize("kind", ["growing", "fixed", "paged", "window=64"])
def test_the_text_is_the_same(writer: Path, kind: str) -> None:
    words = (str(writer), PROMPT, "--max-new-tokens", NEW)
    plain, found = as_json(*words), as_json(*words, "--cache", kind)
    assert found["tokens"] == plain["tokens"]
    assert (found["stats"]["cache"], plain["stats"]["cache"]) == (kind, "growing")
    assert found["stats"]["cache_dropped_tokens"] == 0
    assert found["stats"]["cache_bytes"] > 0


def test_8_bits_take_less_room(writer: Path) -> None:
    words = (str(writer), PROMPT, "--max-new-tokens", NEW)
    plain, found = as_json(*words)["stats"], as_json(*words, "--cache", "int8")["stats"]
    # Heads of 4 numbers: 4 bytes and a scale of 4 instead of 16.
    assert found["cache_bytes"] * 2 == plain["cache_bytes"]
    assert found["new_tokens"] == plain["new_tokens"]


def test_a_window_says_what_it_drops(writer: Path) -> None:
    words = (str(writer), PROMPT, "--max-new-tokens", NEW, "--cache", "window=8")
    told, found = typed("generate", *words), as_json(*words)
    taken = len(PROMPT) + int(NEW) - 1
    assert told.exit_code == 0
    assert told.stderr == (
        f"headwise generate: --cache window=8 has dropped {taken - 8} of {taken} tokens; in each "
        "layer a token saw the last 8\n"
    )
    assert found["stats"]["cache_dropped_tokens"] == taken - 8
    assert found["tokens"] != as_json(*words[:4])["tokens"]


def test_stats_name_the_cache(writer: Path) -> None:
    told = typed("generate", str(writer), PROMPT, "--stats", "--cache", "int8")
    for name in ("cache bytes", "cache dropped tokens", "int8", "decode tokens per second"):
        assert name in told.stderr


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("ring", "--cache is growing, fixed, int8, window=N or paged, got 'ring'"),
        ("int8=3", "--cache is growing, fixed, int8, window=N or paged, got 'int8=3'"),
        ("", "--cache is growing, fixed, int8, window=N or paged, got ''"),
        ("window", "at least 1, got 'window'; as in --cache window=256"),
        ("window=", "at least 1, got 'window='"),
        ("window=0", "at least 1, got 'window=0'"),
        ("window=-3", "at least 1, got 'window=-3'"),
        ("window=²", "at least 1, got 'window=²'"),
    ],
)
def test_wrong_kinds_are_refused(writer: Path, kind: str, answer: str) -> None:
    told = typed("generate", str(writer), PROMPT, "--cache", kind)
    assert (told.exit_code, told.stdout) == (2, "")
    assert answer in told.stderr


def test_a_kind_without_a_cache_is_refused(writer: Path) -> None:
    told = typed("generate", str(writer), PROMPT, "--cache", "int8", "--no-cache")
    assert told.exit_code == 2
    assert "--cache and --no-cache exclude each other; leave one of them out" in told.stderr
