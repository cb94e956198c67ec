"""README and guides are programs: every Python block runs, in order, in one namespace a page."""

import doctest
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest

from tests.docs.pages import CONCEPTS, GUIDES, README, ROOT, fenced, name, parsed

PACKAGE = ROOT / "src" / "headwise"
MODULES = sorted(
    ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for file in PACKAGE.rglob("*.py")
    if file.name != "__main__.py"
)
VARIES = ("backend", "strict", "threads", "takes")


def readme_blocks(language: str) -> list[str]:
    return [text for found, text in fenced(README) if found == language]


@pytest.mark.usefixtures("plain_calls")
@pytest.mark.parametrize("page", [README, *GUIDES, *CONCEPTS], ids=name)
def test_page_runs(page: Path) -> None:
    examples = list(parsed(page).examples())
    assert examples, f"{name(page)} holds no Python block"
    started = time.perf_counter()
    for example in examples:
        example.evaluate()
    taken = time.perf_counter() - started
    assert taken < 5.0, f"{name(page)} took {taken:.1f} s; its limit is 5"


def test_readme_prints_what_it_shows() -> None:
    """A process of its own, for a reader has imported nothing but what the page imports."""
    program = "".join(readme_blocks("python"))
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    printed, shown = ended.stdout.splitlines(), readme_blocks("text")[0].splitlines()
    assert len(printed) >= len(shown)
    for found, wanted in zip(printed, shown, strict=False):
        kept = 1 if wanted.startswith(VARIES) else None
        assert found.split()[:kept] == wanted.split()[:kept]


def test_first_example_is_short() -> None:
    assert len(readme_blocks("python")[0].splitlines()) <= 15


@pytest.mark.usefixtures("plain_calls")
@pytest.mark.parametrize("module", MODULES)
def test_docstring_examples_run(module: str) -> None:
    runner = doctest.DocTestRunner()
    reports: list[str] = []
    for found in doctest.DocTestFinder().find(import_module(module), module):
        runner.run(found, out=reports.append)
    assert not runner.failures, "".join(reports)
