"""What the pages promise about themselves: equal code, nothing left out, their length."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import GUIDES, README, README_ZH, RECORDS, ROOT, fenced, links, name

SECTIONS = ["## Situation", "## Choice", "## Refused", "## Consequences"]
ENVIRONMENT = ROOT / "docs" / "reference" / "environment.md"
READS = re.compile(
    r"""(?:environ\.get\(|environ\[|getenv\(|setenv\()\s*["'](HEADWISE_\w+)"""
    r"""|if\.env\.(HEADWISE_\w+)|export (HEADWISE_\w+)"""
)


def sources() -> Iterator[Path]:
    yield from (ROOT / "pyproject.toml", ROOT / "Makefile")
    for folder in ("src", "csrc", "tests"):
        yield from (p for p in (ROOT / folder).rglob("*") if p.suffix in (".py", ".cpp", ".h"))


def test_both_readmes_hold_the_same_code() -> None:
    assert fenced(README) == fenced(README_ZH)


def test_both_readmes_have_the_same_shape() -> None:
    def shape(page: Path) -> list[str]:
        lines = page.read_text("utf-8").splitlines()
        return [line.split()[0] for line in lines if line.startswith(("#", "|"))]

    assert shape(README) == shape(README_ZH)
    assert sorted(set(links(README))) == sorted(
        {"README.zh-CN.md" if target == "README.md" else target for target in links(README_ZH)}
    )


def test_index_names_every_page() -> None:
    index = ROOT / "docs" / "index.md"
    named = {(index.parent / target).resolve() for target in links(index)}
    pages = {page.resolve() for page in index.parent.rglob("*.md")} - {index.resolve()}
    assert pages <= named


@pytest.mark.parametrize("page", GUIDES, ids=name)
def test_guide_is_short(page: Path) -> None:
    assert len(page.read_text("utf-8").splitlines()) < 150


@pytest.mark.parametrize("page", RECORDS, ids=name)
def test_record_is_short_and_complete(page: Path) -> None:
    lines = page.read_text("utf-8").splitlines()
    assert len(lines) < 60
    assert [line for line in lines if line.startswith("## ")] == SECTIONS


def test_records_are_numbered_without_gaps() -> None:
    numbers = [int(page.name[:4]) for page in RECORDS]
    assert numbers == list(range(1, len(RECORDS) + 1))


def test_every_environment_variable_is_documented() -> None:
    read = {
        next(filter(None, found))
        for file in sources()
        for found in READS.findall(file.read_text("utf-8"))
    }
    documented = set(re.findall(r"HEADWISE_\w+", ENVIRONMENT.read_text("utf-8")))
    assert read == documented
