"""Rules about the files themselves."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path
    for folder, kinds in (
        ("src", ("*.py", "*.pyi")),
        ("csrc", ("*.cpp", "*.h")),
        ("tests", ("*.py",)),
        ("benchmarks", ("*.py",)),
        ("examples", ("*.py",)),
    )
    for kind in kinds
    for path in (ROOT / folder).rglob(kind)
)
WORDS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "csrc").glob("*.md")])


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_is_longer_than_400_lines(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


def test_no_file_is_called_by_a_name_that_says_nothing() -> None:
    vague = {"utils", "helpers", "common", "misc"}
    assert [path for path in SOURCES if path.stem.strip("_") in vague] == []


@pytest.mark.parametrize("path", WORDS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_skips_are_listed() -> None:
    listed = (ROOT / "tests" / "SKIPS.md").read_text(encoding="utf-8")
    for path in SOURCES:
        if path.is_relative_to(ROOT / "tests") and path != Path(__file__):
            text = path.read_text(encoding="utf-8")
            marks = re.findall(r"pytest\.(?:skip|xfail)|mark\.(?:skip|skipif|xfail)", text)
            assert not marks or path.name in listed, f"{path} is not in SKIPS.md"
