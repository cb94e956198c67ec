"""``Learned``: which row a token reads, its gradient, and what it refuses."""

from typing import Any

import pytest
import torch
from torch import nn

from headwise import ShapeError
from headwise.positions import Learned
from tests.support.budget import assert_same_bits


def numbered(max_length: int = 10, offset: int = 0) -> Learned:
    """Return a scheme whose rows hold their own numbers."""
    scheme = Learned(max_length, 2, offset=offset)
    with torch.no_grad():
        scheme.weight.copy_(torch.arange(max_length + offset)[:, None].expand(-1, 2))
    return scheme


def read(scheme: Learned, length: int, offset: Any) -> list[Any]:
    samples = len(offset) if isinstance(offset, torch.Tensor) else 1
    found: list[Any] = scheme(torch.zeros(samples, length, 2), offset)[..., 0].tolist()
    return found


def test_which_rows_are_read() -> None:
    assert read(numbered(), 3, 0) == [[0, 1, 2]]
    assert read(numbered(), 3, 7) == [[7, 8, 9]]
    assert read(numbered(offset=2), 3, 7) == [[9, 10, 11]]
    assert read(numbered(offset=2), 3, torch.tensor([0, 5])) == [[2, 3, 4], [7, 8, 9]]


def test_padding_on_the_left_reads_the_row_before_the_first() -> None:
    assert read(numbered(offset=2), 4, torch.tensor([-3, -1])) == [[1, 1, 1, 2], [1, 2, 3, 4]]
    assert read(numbered(offset=2), 4, -2) == [[1, 1, 2, 3]]
    assert read(numbered(offset=0), 4, -2) == [[0, 0, 0, 1]]


def test_left_padded_prompts_predict_what_they_predict_alone() -> None:
    """B92: two prompts of 4 and 2 tokens, the second padded to 4."""
    scheme, x = Learned(16, 8), torch.randn(2, 4, 8)
    both = scheme(x, torch.tensor([0, -2]))
    assert_same_bits(both[1, 2:], scheme(x[1, 2:]))
    assert_same_bits(both[0], scheme(x[0]))


def test_the_gradient_counts_how_often_a_row_was_read() -> None:
    scheme, x = numbered(6, offset=1), torch.zeros(2, 3, 2, requires_grad=True)
    scheme(x, torch.tensor([-1, 0])).sum().backward()
    assert scheme.weight.grad is not None
    assert scheme.weight.grad[:, 0].tolist() == [1, 2, 2, 1, 0, 0, 0]
    assert x.grad is not None
    assert x.grad.eq(1).all()
    (gradient,) = torch.autograd.grad(scheme(x, 2).sum(), scheme.weight)
    assert gradient[:, 0].tolist() == [0, 0, 0, 2, 2, 2, 0]


def test_its_state_is_its_weight() -> None:
    scheme = Learned(10, 4, offset=2, dtype=torch.bfloat16)
    assert list(scheme.state_dict()) == ["weight"]
    assert scheme.weight.shape == (12, 4)
    assert scheme.weight.dtype == torch.bfloat16
    assert repr(scheme) == "Learned(10, 4, offset=2)"
    assert repr(Learned(10, 4)) == "Learned(10, 4)"
    embedding = nn.Embedding(12, 4)
    scheme.load_state_dict(embedding.state_dict())
    with torch.device("meta"):
        empty = Learned(10, 4)
    assert empty(torch.zeros(2, 3, 4, device="meta"), 3).is_meta


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)], ids=str)
def test_sizes_of_0(shape: tuple[int, ...]) -> None:
    scheme = Learned(10, 4)
    for offset in (10 - shape[1], torch.ones(shape[0], dtype=torch.long)):
        x = torch.randn(*shape, 4, requires_grad=True)
        scheme(x, offset).sum().backward()
        assert x.grad is not None
        assert scheme.weight.grad is not None
        assert not scheme.weight.grad.any()


@pytest.mark.parametrize("offset", [8, torch.tensor([0, 8])])
def test_positions_past_the_last_are_refused(offset: Any) -> None:
    with pytest.raises(ShapeError) as refusal:
        Learned(10, 4, offset=2)(torch.zeros(2, 3, 4), offset)
    assert str(refusal.value) == (
        "Learned: positions must be below max_length=10, got 10\n"
        "  hint: cut the text, or train with more positions; Rotary and Alibi have no bound"
    )


@pytest.mark.parametrize(
    ("given", "problem", "hint"),
    [
        ((0, 4, 0), "max_length must be an int of at least 1, got 0", "give the longest text, in "),
        ((9, 4.0, 0), "d_model must be an int of at least 1, got 4.0", "give the width of the mod"),
        ((9, 4, -1), "offset must be an int of at least 0, got -1", "BART, OPT and RoBERTa have "),
    ],
)
def test_what_makes_no_sense_is_refused(given: Any, problem: str, hint: str) -> None:
    max_length, d_model, offset = given
    with pytest.raises(ShapeError) as refusal:
        Learned(max_length, d_model, offset=offset)
    assert str(refusal.value).startswith(f"Learned: {problem}\n  hint: {hint}")


def test_tokens_of_another_width() -> None:
    with pytest.raises(ShapeError) as refusal:
        Learned(9, 4)(torch.ones(2, 3, 5))
    assert str(refusal.value) == (
        "Learned: x must be (…, length, d_model) with a d_model of 4\n"
        "  x  (2, 3, 5) torch.float32 cpu\n  hint: positions are added before the heads are split"
    )
