"""The project's pages: where they are, their links, their code."""

import re
from pathlib import Path

from sybil import Document, Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

ROOT = Path(__file__).parents[2]

README = ROOT / "README.md"
README_ZH = ROOT / "README.zh-CN.md"
GUIDES = tuple(sorted((ROOT / "docs" / "guides").glob("*.md")))
CONCEPTS = tuple(sorted((ROOT / "docs" / "concepts").glob("*.md")))
RECORDS = tuple(sorted((ROOT / "docs" / "decisions").glob("*.md")))

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def fenced(page: Path) -> list[tuple[str, str]]:
    """Return the language and the text of every fenced block, in order."""
    return _FENCED.findall(page.read_text("utf-8"))


def links(page: Path) -> list[str]:
    """Return the targets of links that stay inside the repository."""
    text = _FENCED.sub("", page.read_text("utf-8"))
    return [target for target in _LINK.findall(text) if "://" not in target]


def parsed(page: Path) -> Document:
    """Read a page; its Python blocks share one namespace, those with ``>>>`` are doctests."""
    return Sybil(parsers=[PythonCodeBlockParser()], path=str(page.parent)).parse(page)


def name(page: Path) -> str:
    """Return the path of a page as people write it."""
    return page.relative_to(ROOT).as_posix()
