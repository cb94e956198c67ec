import json

import pytest
import torch

from headwise import _native
from headwise.cli.bench import EVERYDAY, QUICK, Case, Limits, as_table, limits, report
from headwise.cli.bench.contenders import inputs
from headwise.cli.bench.measure import Ratio, alternate, ratio
from headwise.patterns import Causal, Window
from tests.cli.typed import assert_refused, typed

CASES = [
    Case("full", 3, 3, 13, 13, 7),
    Case("causal", 6, 2, 11, 11, 5, Causal(), batch=2),
    Case("window", 2, 2, 29, 29, 3, Causal() & Window(4, 0)),
    Case("decode", 6, 3, 1, 17, 5, Causal(), reads=True),
    Case("low", 2, 2, 7, 7, 5, None, "bfloat16"),
    Case("training", 6, 2, 11, 11, 5, Causal(), batch=2, backward=True),
    Case("low-training", 2, 2, 7, 7, 5, None, "bfloat16", backward=True),
]
LIMITS = Limits({"float32": 500.0}, 80.0)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_is_checked_and_measured(case: Case) -> None:
    found = report(case, seconds=0.0, limits=LIMITS)
    assert (found.name, found.rounds) == (case.name, 5)
    assert found.unit == ("GB/s" if case.reads else "GFLOP/s")
    assert set(found.milliseconds) == set(found.errors) == {"headwise", "sdpa", "formula"}
    gradients = {"d_query", "d_key", "d_value"} if case.backward else set()
    assert set(found.errors["sdpa"]) == {"output"} | gradients
    assert found.over_sdpa.low <= found.over_sdpa.median <= found.over_sdpa.high
    limit = {"float32": 80.0 if case.reads else 500.0, "bfloat16": None}[case.dtype]
    assert found.share == (None if limit is None else found.rate / limit)


@pytest.mark.parametrize(("backward", "flops_per_pair"), [(False, 4), (True, 14)])
def test_the_rate_counts_the_allowed_pairs(backward: bool, flops_per_pair: int) -> None:
    found = report(Case("n", 6, 2, 11, 11, 5, Causal(), batch=2, backward=backward), seconds=0.0)
    operations = flops_per_pair * 2 * 6 * (11 * 12 // 2) * 5
    seconds = found.milliseconds["headwise"] / 1e3
    assert found.rate * 1e9 * seconds == pytest.approx(operations)


def test_decoding_counts_the_bytes_of_keys_and_values() -> None:
    found = report(Case("n", 6, 3, 1, 17, 5, None, "bfloat16", batch=2, reads=True), seconds=0.0)
    seconds = found.milliseconds["headwise"] / 1e3
    assert found.rate * 1e9 * seconds == pytest.approx(2 * (2 * 3 * 17 * 5) * 2)


def test_inputs_are_the_same_in_every_run() -> None:
    first, again = inputs(CASES[5]), inputs(CASES[5])
    assert torch.equal(first.query, again.query)
    assert first.d_output is not None
    assert again.d_output is not None
    assert torch.equal(first.d_output, again.d_output)
    assert not torch.equal(first.query, inputs(CASES[5], seed=1).query)


def test_contenders_take_turns() -> None:
    seen: list[str] = []
    times = alternate({"a": lambda: seen.append("a"), "b": lambda: seen.append("b")}, 0.0)
    turns = [name for n, name in enumerate(seen) if n == 0 or seen[n - 1] != name]
    assert turns == ["a", "b"] * 6  # the first turn finds out how often to repeat
    assert len(times["a"]) == len(times["b"]) == 5


def test_ratios_by_hand() -> None:
    assert ratio([2.0, 6.0, 12.0], [1.0, 2.0, 3.0]) == Ratio(3.0, 2.5, 3.5)


def test_limits_of_this_machine() -> None:
    found = limits(case.dtype for case in CASES)
    assert found is not None
    assert set(found.arithmetic) == {"float32", "bfloat16"}
    assert min(*found.arithmetic.values(), found.memory) > 0.1
    assert found.share(Case("n", 1, 1, 1, 1, 1, dtype="float64"), 1.0) is None


def test_without_the_core_there_are_no_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "kernels", None)
    assert limits(["float32"]) is None
    title = str(as_table([], None).title).splitlines()[1]
    assert title == "limits of this machine: not measured, for the loops that do it are compiled"


def test_json_names_the_machine_and_its_limits(capsys: pytest.CaptureFixture[str]) -> None:
    before = torch.get_num_threads()
    result = typed("bench", "--quick", "--case", "overhead-16", "--threads", "1", "--json")
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
    assert set(found["limits"]) == {"arithmetic", "memory"}
    assert list(found["limits"]["arithmetic"]) == ["float32"]
    assert [case["name"] for case in found["cases"]] == ["overhead-16"]
    assert found["cases"][0]["over_sdpa"]["median"] > 0
    assert 0 < found["cases"][0]["share"] < 1
    assert torch.get_num_threads() == before


def test_the_table_states_the_conditions() -> None:
    result = typed("bench", "--quick", "--case", "overhead-16", "--threads", "1")
    machine, bounds, header, row = result.stdout.splitlines()
    assert f"torch {torch.__version__}" in machine
    assert "1 threads, load " in machine
    assert bounds.startswith("limits of this machine: ")
    assert " GFLOP/s float32, " in bounds
    assert bounds.endswith(" GB/s read")
    assert header.split()[-2:] == ["of", "limit"]
    assert "1 x 12 x 16 x 64" in row
    assert row.endswith("%")


def test_an_unknown_case() -> None:
    result = typed("bench", "--quick", "--case", "none-such")
    assert_refused(result, 2, "there is no case none-such; the cases are causal-1024x64")


@pytest.mark.parametrize("cases", [QUICK, EVERYDAY], ids=["quick", "everyday"])
def test_a_selection_has_every_kind(cases: tuple[Case, ...]) -> None:
    assert len({case.name for case in cases}) == len(cases)
    assert {case.dtype for case in cases} >= {"float32", "bfloat16"}
    assert {case.backward for case in cases} == {case.reads for case in cases} == {True, False}
    assert any(case.dtype == "float64" for case in cases)  # promises no gain
