"""B98: boundaries of documents were overwritten by those of a padding mask of ones."""

import pytest
import torch

import headwise as hw
from headwise.patterns import Pattern
from tests.support.budget import assert_same_bits
from tests.support.judge import judged
from tests.support.paths import Path, on_all, on_exact, on_layers
from tests.support.shapes import Inputs, Sizes, inputs
from tests.unit.patterns.test_draws import DRAWN

ENDS = [0, 2, 6]
OPEN = torch.ones(1, 6, dtype=torch.bool)
GIVEN = inputs(Sizes(1, 2, 1, 6, 6, 8, 8))
PART = torch.tensor([0, 0, 1, 1, 1, 1])
VISIBLE = PART.view(-1, 1) == PART
SPELLINGS: list[Pattern] = [
    hw.Documents.from_cu_seqlens(ENDS) & hw.KeyMask(OPEN),
    hw.KeyMask(OPEN) & hw.Documents.from_cu_seqlens(torch.tensor(ENDS)),
    hw.Documents([0, 0, 1, 1, 1, 1]) & hw.Lengths(6, 6),
    hw.Documents([[4, 4, 0, 0, 0, 0]]) & hw.Dense(OPEN),
    ~(~hw.Documents([0, 0, 1, 1, 1, 1]) | ~hw.KeyMask(OPEN)),
]


@on_all
@pytest.mark.parametrize("pattern", SPELLINGS, ids=lambda x: repr(x)[:60])
def test_boundaries_win(path: Path, pattern: Pattern) -> None:
    judged(path, *GIVEN, pattern, visible=VISIBLE)


@on_exact
def test_each_document_is_a_call_of_its_own(path: Path) -> None:
    with path.taken() as backend:
        packed = hw.attend(*GIVEN, SPELLINGS[0] & hw.Causal(), backend=backend)
        for part in (slice(0, 2), slice(2, 6)):
            alone = Inputs(*(tensor[:, :, part] for tensor in GIVEN))
            wanted = hw.attend(*alone, hw.Causal(), backend=backend)
            torch.testing.assert_close(packed[:, :, part], wanted)
        others = Inputs(*(tensor.clone() for tensor in GIVEN))
        for tensor in others:
            tensor[:, :, :2] = float("nan")
        spoiled = hw.attend(*others, SPELLINGS[0] & hw.Causal(), backend=backend)
        assert_same_bits(spoiled[:, :, 2:], packed[:, :, 2:])


@on_layers
def test_boundaries_win_in_a_layer(path: Path) -> None:
    documents = hw.Documents.from_cu_seqlens(ENDS)
    own, plain = hw.MultiHeadAttention(8, 2, pattern=documents), hw.MultiHeadAttention(8, 2)
    plain.load_state_dict(own.state_dict())
    x = torch.randn(1, 6, 8)
    with path.taken():
        for found in (
            own(x, kv_mask=OPEN),
            own(x, mask=OPEN.expand(6, 6)),
            plain(x, kv_mask=OPEN, pattern=documents),
        ):
            torch.testing.assert_close(found[:, :2], plain(x[:, :2]))
            torch.testing.assert_close(found[:, 2:], plain(x[:, 2:]))


@pytest.mark.parametrize(("pattern", "q_len", "kv_len"), [case[:3] for case in DRAWN], ids=repr)
def test_an_open_mask_takes_nothing_from_any_pattern(
    pattern: Pattern, q_len: int, kv_len: int
) -> None:
    wanted = pattern.dense(q_len, kv_len)
    for more in (hw.KeyMask([True] * kv_len), hw.Lengths(kv_len), hw.Full()):
        for both in (pattern & more, more & pattern):
            assert torch.equal(both.dense(q_len, kv_len), wanted)
