import json

import pytest
import torch

from headwise.cli.bench import EVERYDAY, QUICK, Case, report
from headwise.cli.bench.contenders import contenders, inputs
from headwise.cli.bench.gate import check
from headwise.cli.bench.measure import Ratio, alternate, ratio
from headwise.cli.failures import Unable
from headwise.patterns import Causal, Window
from tests.cli.typed import assert_refused, typed

CASES = [
    Case("full", 3, 3, 13, 13, 7),
    Case("causal", 6, 2, 11, 11, 5, Causal()),
    Case("window", 2, 2, 29, 29, 3, Causal() & Window(4, 0)),
    Case("decode", 6, 3, 1, 17, 5, Causal(), reads=True),
    Case("low", 2, 2, 7, 7, 5, None, "bfloat16"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_is_checked_and_measured(case: Case) -> None:
    found = report(case, seconds=0.0)
    assert (found.name, found.rounds) == (case.name, 5)
    assert found.rate > 0
    assert found.unit == ("GB/s" if case.reads else "GFLOP/s")
    assert set(found.milliseconds) == set(found.errors) == {"headwise", "sdpa", "formula"}
    assert found.over_sdpa.low <= found.over_sdpa.median <= found.over_sdpa.high


def test_a_wrong_answer_is_not_measured() -> None:
    given = inputs(CASES[0])
    outputs = {name: call() for name, call in contenders(CASES[0], given).items()}
    check("full", given, outputs)
    outputs["headwise"][0, 1, 2, 3] += 0.25
    with pytest.raises(Unable, match=r"^full: headwise is wrong by 2\.500e-01, where "):
        check("full", given, outputs)
    outputs["headwise"][0, 1, 2, 3] = torch.nan
    with pytest.raises(Unable, match=r"^full: headwise is wrong by nan"):
        check("full", given, outputs)


def test_contenders_take_turns() -> None:
    seen: list[str] = []
    times = alternate({"a": lambda: seen.append("a"), "b": lambda: seen.append("b")}, 0.0)
    turns = [name for n, name in enumerate(seen) if n == 0 or seen[n - 1] != name]
    assert turns == ["a", "b"] * 6  # the first turn finds out how often to repeat
    assert len(times["a"]) == len(times["b"]) == 5


def test_ratios_by_hand() -> None:
    assert ratio([2.0, 6.0, 12.0], [1.0, 2.0, 3.0]) == Ratio(3.0, 2.5, 3.5)


def test_json_names_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    before = torch.get_num_threads()
    result = typed("bench", "--quick", "--case", "short-16", "--threads", "1", "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["machine"]["threads"] == 1
    assert set(found["machine"]) == {
        "cpu",
        "instruction_set",
        "threads",
        "torch",
        "headwise",
        "load",
    }
    assert [case["name"] for case in found["cases"]] == ["short-16"]
    assert found["cases"][0]["over_sdpa"]["median"] > 0
    assert torch.get_num_threads() == before


def test_the_table_states_the_conditions() -> None:
    result = typed("bench", "--quick", "--case", "short-16", "--threads", "1")
    assert f"torch {torch.__version__}" in result.stdout.splitlines()[0]
    assert "1 threads, load " in result.stdout.splitlines()[0]
    assert "12 x 16 x 64" in result.stdout


def test_an_unknown_case() -> None:
    result = typed("bench", "--quick", "--case", "none-such")
    assert_refused(result, 2, "there is no case none-such; the cases are causal-1024x64")


def test_names_are_unique_and_one_case_promises_nothing() -> None:
    for cases in (QUICK, EVERYDAY):
        assert len({case.name for case in cases}) == len(cases)
        assert any(case.dtype == "bfloat16" for case in cases)
