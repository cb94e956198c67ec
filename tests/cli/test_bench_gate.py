"""A wrong answer of any contender, in the output or in a gradient, is found before it is timed."""

import pytest
import torch

from headwise.cli.bench.cases import Case
from headwise.cli.bench.contenders import ANSWERS, Answers, Inputs, contenders, inputs
from headwise.cli.bench.gate import check
from headwise.cli.failures import Unable
from headwise.patterns import Causal

CASE = Case("grouped", 6, 2, 11, 11, 5, Causal(), batch=3, backward=True)


def _found() -> tuple[Inputs, dict[str, Answers]]:
    given = inputs(CASE)
    return given, {name: call() for name, call in contenders(CASE, given).items()}


@pytest.mark.parametrize("contender", ["headwise", "sdpa", "formula"])
@pytest.mark.parametrize("answer", range(4))
def test_a_wrong_answer_is_not_measured(contender: str, answer: int) -> None:
    given, found = _found()
    check("grouped", given, found)
    with torch.no_grad():
        found[contender][answer][2, -1, 2, 3] += 0.25
    wrong = rf"^grouped: {ANSWERS[answer]} of {contender} is wrong by 2\.500e-01, where "
    with pytest.raises(Unable, match=wrong):
        check("grouped", given, found)


def test_nan_is_wrong() -> None:
    given, found = _found()
    with torch.no_grad():
        found["headwise"][0][0, 1, 2, 3] = torch.nan
    with pytest.raises(Unable, match=r"^grouped: output of headwise is wrong by nan"):
        check("grouped", given, found)


def test_errors_are_those_of_the_whole() -> None:
    given, found = _found()
    errors = check("grouped", given, found)
    assert given.d_output is not None
    query, key, value = (
        tensor.detach().double().requires_grad_()
        for tensor in (given.query, given.key, given.value)
    )
    doubled = Inputs(query, key, value, given.mask, given.d_output.double())
    exact = contenders(CASE, doubled)["formula"]()
    for name, ours in found.items():
        for answer, mine, right in zip(ANSWERS, ours, exact, strict=True):
            assert errors[name][answer] == pytest.approx((mine - right).abs().max().item())


def test_a_peer_is_held_to_less() -> None:
    case = Case("low", 2, 2, 7, 7, 5, None, "bfloat16")
    given = inputs(case)
    found = {name: call() for name, call in contenders(case, given).items()}
    allowed = 2.0 * max(check("low", given, found)["formula"]["output"], 4 * 2**-7)
    for name in ("sdpa", "headwise"):
        found[name] = tuple(answer.float() + 1.5 * allowed for answer in found[name])
        if name == "sdpa":
            check("low", given, found)
    with pytest.raises(Unable, match="output of headwise"):
        check("low", given, found)


def test_the_formula_is_left_out_where_its_scores_would_not_fit() -> None:
    case = Case("long", 12, 12, 4096, 4096, 1)
    assert "formula" in contenders(case, inputs(case))
    case = Case("longer", 12, 12, 4096, 4096, 1, backward=True)
    assert set(contenders(case, inputs(case))) == {"headwise", "sdpa"}
