"""Runs a file of torch's own tests of attention with and without the patch, and compares.

    python -m tests.parity.torch_sdpa_suite test_transformers.py [further arguments of pytest]

The file is torch's ``test/test_transformers.py`` or another one; it is not part of this
repository. It runs three times, in the ways of ``tests/support/sdpa_ways.py``. Every test has to
end as it does without the patch, but for those that ``torch_sdpa_differences.txt`` lists with a
reason; the exit code says whether that is so.
"""

# ruff: noqa: T201

import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from tests.support.sdpa_ways import COUNTED, WAYS

_ROOT = Path(__file__).parents[2]
LISTED = Path(__file__).with_name("torch_sdpa_differences.txt")

Outcomes = Mapping[str, str]


class Listed(NamedTuple):
    """One line of the list: a pattern of names, and why such tests end otherwise."""

    names: str
    reason: str


def read_list(text: str) -> list[Listed]:
    """Read lines of the form ``names | reason``; ``#`` begins a remark."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [Listed(*map(str.strip, line.split("|", 1))) for line in lines]


def outcomes(report: str) -> dict[str, str]:
    """Return how every test of a JUnit report ended: passed, failed or skipped."""
    found = {}
    for case in ElementTree.fromstring(report).iter("testcase"):
        kinds = {child.tag for child in case}
        ended = "skipped" if "skipped" in kinds else "passed"
        ended = "failed" if kinds & {"failure", "error"} else ended
        found[f"{case.get('classname')}.{case.get('name')}"] = ended
    return found


def differences(before: Outcomes, after: Outcomes) -> dict[str, str]:
    """Return the tests that end otherwise, each with both ends."""
    names = sorted({*before, *after})
    pairs = {name: (before.get(name, "missing"), after.get(name, "missing")) for name in names}
    return {name: f"{one} → {two}" for name, (one, two) in pairs.items() if one != two}


def reason(name: str, listed: Sequence[Listed]) -> str | None:
    """Return why a test may end otherwise, where the list says so."""
    return next((line.reason for line in listed if fnmatchcase(name, line.names)), None)


def run(suite: Path, way: str, words: Sequence[str]) -> tuple[dict[str, str], str]:
    """Run the file in a process of its own; return how tests ended, and the line that counts."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider"),
                *("-p", "tests.support.sdpa_ways", f"--sdpa={way}", f"--junitxml={report}"),
                *(f"--rootdir={suite.parent}", suite.name, *words),
            ],
            cwd=suite.parent,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT), *_python_path()])},
            capture_output=True,
            text=True,
            check=False,
        )
        if not report.is_file():
            raise SystemExit(f"pytest ended without a report\n{done.stdout}\n{done.stderr}")
        counted = [line for line in done.stdout.splitlines() if line.startswith(COUNTED)]
        return outcomes(report.read_text("utf-8")), counted[-1]


def main() -> None:
    """Run the suite in every way; exit with 1 where a difference is not listed."""
    if len(sys.argv) < 2 or not Path(sys.argv[1]).is_file():
        raise SystemExit("torch_sdpa_suite: name the file of torch's tests, which is fetched apart")
    suite, words = Path(sys.argv[1]).resolve(), sys.argv[2:]
    listed = read_list(LISTED.read_text("utf-8"))
    before: dict[str, str] = {}
    unlisted = 0
    for way in WAYS:
        after, counted = run(suite, way, words)
        ends = ", ".join(f"{count} {end}" for end, count in sorted(Counter(after.values()).items()))
        print(f"{way}: {ends}; {counted}", flush=True)
        before = before or after
        for name, ended in differences(before, after).items():
            why = reason(name, listed)
            unlisted += why is None
            print(f"  {name}: {ended} ({why or 'NOT LISTED'})", flush=True)
    print(f"{unlisted} differences that are not listed")
    raise SystemExit(min(unlisted, 1))


def _python_path() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


if __name__ == "__main__":
    main()
