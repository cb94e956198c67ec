"""The runner of torch's own tests: what it reads, what it compares, and runs of a small file."""

import sys
from pathlib import Path

import pytest

from tests.parity import torch_sdpa_suite as suite

REPORT = """<testsuites><testsuite>
<testcase classname="a.B" name="one"/>
<testcase classname="a.B" name="two"><skipped/></testcase>
<testcase classname="a.B" name="three"><failure/></testcase>
<testcase classname="a.B" name="four"><error/></testcase>
</testsuite></testsuites>"""

TESTS = """
from torch import ones
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as attend
from torch.overrides import has_torch_function


def test_computed():
    x = ones(1, 2, 3, 8)
    assert (attend(x, x, x) - x).abs().max() < 1e-6


def test_pinned():
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        test_computed()


def test_no_mode():
    assert not has_torch_function((ones(1),))
"""


def test_reports_and_lists_are_read() -> None:
    found = suite.outcomes(REPORT)
    assert found == {"a.B.one": "passed", "a.B.two": "skipped"} | dict.fromkeys(
        ["a.B.three", "a.B.four"], "failed"
    )
    listed = suite.read_list("# remark\n\n*.three | because\na.B.f* | so | it is\n")
    reasons = [suite.reason(name, listed) for name in found]
    assert reasons == [None, None, "because", "so | it is"]


def test_every_difference_is_found() -> None:
    before, after = {"a": "passed", "b": "passed", "c": "skipped"}, {"a": "failed", "b": "passed"}
    assert suite.differences(before, after) == {
        "a": "passed → failed",
        "c": "skipped → missing",
    }


def test_every_line_of_the_list_has_a_reason() -> None:
    assert all(line.names and line.reason for line in suite.read_list(suite.LISTED.read_text()))


def test_a_suite_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["suite"])
    with pytest.raises(SystemExit, match="name the file of torch's tests, which is fetched apart"):
        suite.main()


def test_differences_that_are_not_listed_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = tmp_path / "listed.txt"
    listed.write_text("*.two | it is so\n")
    ends = {
        "torch": {"a.one": "passed", "a.two": "passed"},
        "patched": {"a.one": "failed", "a.two": "failed"},
        "unpinned": {"a.one": "passed", "a.two": "passed"},
    }
    monkeypatch.setattr(suite, "run", lambda file, way, words: (ends[way], f"{words} counted"))
    monkeypatch.setattr(suite, "LISTED", listed)
    monkeypatch.setattr(sys, "argv", ["suite", str(listed), "-x"])
    with pytest.raises(SystemExit) as ended:
        suite.main()
    assert ended.value.code == 1
    assert capsys.readouterr().out.splitlines() == [
        "torch: 2 passed; ['-x'] counted",
        "patched: 2 failed; ['-x'] counted",
        "  a.one: passed → failed (NOT LISTED)",
        "  a.two: passed → failed (it is so)",
        "unpinned: 2 passed; ['-x'] counted",
        "1 differences that are not listed",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("way", "count"), [("torch", 0), ("patched", 1), ("unpinned", 2)])
def test_one_run_of_a_file(tmp_path: Path, way: str, count: int) -> None:
    file = tmp_path / "test_small.py"
    file.write_text(TESTS)
    found = suite.run(file, way, ())
    no_mode = "passed" if way == "torch" else "failed"
    assert found == (
        {
            "test_small.test_computed": "passed",
            "test_small.test_pinned": "passed",
            "test_small.test_no_mode": no_mode,
        },
        f"calls taken by headwise: {count}",
    )
