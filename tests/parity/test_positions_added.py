"""Positions that are added to tokens are those of transformers' models, and load from them."""

from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor
from transformers.models.bart import modeling_bart
from transformers.models.m2m_100 import modeling_m2m_100
from transformers.models.marian import modeling_marian
from transformers.models.opt import modeling_opt
from transformers.models.pegasus import modeling_pegasus
from transformers.models.roberta import modeling_roberta
from transformers.models.whisper import modeling_whisper

from headwise.positions import Learned, Sinusoidal
from tests.support.budget import assert_same_bits, assert_within_budget

MARIAN: Any = modeling_marian
PEGASUS: Any = modeling_pegasus
M2M: Any = modeling_m2m_100
WHISPER: Any = modeling_whisper
OPT: Any = modeling_opt
BART: Any = modeling_bart
ROBERTA: Any = modeling_roberta

WIDTHS = st.integers(4, 40)
LENGTHS = st.integers(1, 300)


def assert_rows(scheme: Sinusoidal, theirs: Tensor, offset: int = 0) -> None:
    length = len(theirs)
    exact = scheme(torch.zeros(length, scheme.d_model, dtype=torch.float64), offset)
    found = scheme(torch.zeros(length, scheme.d_model), offset)
    assert_within_budget(found, exact=exact, plain=theirs, label=repr(scheme))
    # What they compute in float32 strays from the formula by the rounding of the angle only.
    assert (theirs.double() - exact).abs().max() < 1e-6 * (length + offset + 2)


@given(width=WIDTHS, length=LENGTHS)
def test_marian_and_pegasus(width: int, length: int) -> None:
    scheme = Sinusoidal(width, interleaved=False)
    marian = MARIAN.MarianSinusoidalPositionalEmbedding(length, width)
    assert_rows(scheme, marian.create_weight())
    pegasus = PEGASUS.PegasusSinusoidalPositionalEmbedding(length, width)
    assert_rows(scheme, pegasus.create_weight())


@given(width=WIDTHS, length=LENGTHS)
def test_m2m_100(width: int, length: int) -> None:
    """Its first token stands at 2, for 1 is the number of its padding, whose row is zero."""
    theirs = M2M.M2M100SinusoidalPositionalEmbedding(length, width, padding_idx=1)
    tokens = torch.full((1, length), 7)
    rows = theirs(tokens)[0]
    assert_rows(Sinusoidal(width, interleaved=False, inclusive=True, offset=2), rows)


@given(width=WIDTHS, length=LENGTHS, base=st.sampled_from([10000, 500]))
def test_whisper(width: int, length: int, base: int) -> None:
    assume(width % 2 == 0)
    theirs = WHISPER.sinusoids(length, width, base)
    assert_rows(Sinusoidal(width, float(base), interleaved=False, inclusive=True), theirs)


@given(half=st.integers(2, 20), length=LENGTHS)
def test_the_papers_form_holds_the_same_numbers_in_turns(half: int, length: int) -> None:
    rows = torch.zeros(length, 2 * half)
    in_turns = Sinusoidal(2 * half)(rows)
    halves = Sinusoidal(2 * half, interleaved=False)(rows)
    assert_same_bits(in_turns.view(length, half, 2).mT.reshape(length, -1), halves)


@pytest.mark.parametrize("padding", [0, 1, 3])
def test_opt(padding: int) -> None:
    """OPT counts real tokens, and its padding on the left reads row 1."""
    theirs = OPT.OPTLearnedPositionalEmbedding(20, 6)
    scheme = Learned(20, 6, offset=2)
    scheme.load_state_dict(theirs.state_dict())
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[1, :padding] = 0
    x = torch.randn(2, 7, 6)
    found = scheme(x, torch.tensor([0, -padding]))
    assert_same_bits(found, x + theirs(mask))
    for side in (found, x + theirs(mask)):
        side.square().sum().backward()
    torch.testing.assert_close(scheme.weight.grad, theirs.weight.grad)


@pytest.mark.parametrize("past", [0, 4])
def test_bart(past: int) -> None:
    theirs = BART.BartLearnedPositionalEmbedding(20, 6)
    scheme = Learned(20, 6, offset=2)
    scheme.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 7, 6)
    wanted = x + theirs(torch.zeros(2, 7, dtype=torch.long), cache_length=past)
    assert_same_bits(scheme(x, past), wanted)


def test_roberta_numbers_its_padding_as_the_row_before_the_first() -> None:
    """Padding on the left: its positions are the number of the padding token, 1."""
    scheme = Learned(20, 6, offset=2)
    tokens = torch.tensor([[5, 6, 7, 8], [1, 1, 5, 6]])
    numbers = ROBERTA.RobertaEmbeddings.create_position_ids_from_input_ids(tokens, 1)
    x = torch.zeros(2, 4, 6)
    assert_same_bits(scheme(x, torch.tensor([0, -2])), scheme.weight[numbers] + x)
