"""A model of reactions, 12 layers of width 256, guesses each of their tokens from the others."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise import hf
from headwise.ops import tally
from tests.support.budget import assert_within_budget
from tests.support.rxnfp_weights import numbers_of, reaction_model

pytestmark = [pytest.mark.real, pytest.mark.slow]

# How ethyl acetate, N-benzylacetamide, biphenyl and paracetamol are made in textbooks.
REACTIONS = (
    "CC(=O)O.CCO>>CCOC(C)=O",
    "CC(=O)Cl.NCc1ccccc1>>CC(=O)NCc1ccccc1",
    "OB(O)c1ccccc1.Brc1ccccc1>>c1ccc(-c2ccccc2)cc1",
    "CC(=O)OC(C)=O.Nc1ccc(O)cc1>>CC(=O)Nc1ccc(O)cc1",
)


@pytest.fixture(scope="module")
def masked(rxnfp: Path) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Every reaction once for each of its tokens, that one masked: inputs, places, answers."""
    padding, start, end, mask = numbers_of(rxnfp, "[PAD][CLS][SEP][MASK]")
    rows, places, answers = [], [], []
    for reaction in REACTIONS:
        numbers = numbers_of(rxnfp, reaction)
        for place, hidden in enumerate(numbers, 1):
            row = [start, *numbers, end]
            row[place] = mask
            rows.append(torch.tensor(row))
            places.append(place)
            answers.append(hidden)
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=padding)
    given = {"input_ids": ids, "attention_mask": (ids != padding).long()}
    return given, torch.tensor(places), torch.tensor(answers)


def _guesses(model: Any, given: dict[str, Tensor], places: Tensor) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = model(**given).prediction_logits
    return logits[torch.arange(len(places)), places]


def test_as_many_tokens_are_guessed_as_before(
    rxnfp: Path, masked: tuple[dict[str, Tensor], Tensor, Tensor]
) -> None:
    given, places, answers = masked
    model = reaction_model(rxnfp)
    plain = _guesses(model, given, places)
    hf.accelerate(model)
    with tally() as ran:
        actual = _guesses(model, given, places)
    assert set(ran) == {"native"}
    assert len(answers) == 144
    assert int((actual.argmax(-1) == answers).sum()) >= 125
    assert torch.equal(actual.argmax(-1), plain.argmax(-1))
    some = torch.arange(0, 144, 9)
    wide = hf.restore(model).double()
    exact = _guesses(wide, {name: rows[some] for name, rows in given.items()}, places[some])
    assert_within_budget(actual[some], exact=exact, plain=plain[some], label="logits")
