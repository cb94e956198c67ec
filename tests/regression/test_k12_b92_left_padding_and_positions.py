"""K12, B92: prompts padded on the left took the positions of the padding.

transformers#21080, #7552, #3021: the short prompt of a batch predicted something else than alone.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import headwise as hw
from headwise.positions import Learned, Rotary, Sinusoidal
from tests.support.budget import largest_error

WIDTH, LONGEST = 16, 12
prompts = st.lists(st.integers(1, 6), min_size=1, max_size=3)


class Guesser(nn.Module):
    """Tokens plus positions, two causal layers, the scores of the next token."""

    def __init__(self, inside: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, WIDTH)
        self.places = None if inside else Learned(LONGEST, WIDTH)
        self.layers = nn.ModuleList(
            hw.MultiHeadAttention(
                WIDTH, 2, pattern=hw.Causal(), positions=Learned(LONGEST, WIDTH) if inside else None
            )
            for _ in range(2)
        )

    def forward(self, ids: Tensor, real: Tensor | None = None) -> Tensor:
        """Return (batch, length, 11)."""
        x = self.tokens(ids)
        if self.places is not None:
            padding = 0 if real is None else -(~real).sum(-1)
            x = self.places(x, padding)
        for layer in self.layers:
            x = x + layer(x, kv_mask=real)
        scores: Tensor = x @ self.tokens.weight.T
        return scores


@pytest.mark.parametrize("inside", [True, False], ids=["in the layer", "added once"])
@given(lengths=prompts, seed=st.integers(0, 99))
def test_a_short_prompt_predicts_what_it_does_alone(
    inside: bool, lengths: list[int], seed: int
) -> None:
    torch.manual_seed(seed)
    model = Guesser(inside).double()
    longest = max(lengths)
    ids = torch.randint(11, (len(lengths), longest))
    real = torch.arange(longest) >= longest - torch.tensor(lengths)[:, None]
    together = model(ids, real)
    for n, length in enumerate(lengths):
        alone = model(ids[n : n + 1, longest - length :])
        assert largest_error(together[n, longest - length :], alone[0]) < 1e-12
        parameters = list(model.parameters())
        found = torch.autograd.grad(together[n, -1].sum(), parameters, retain_graph=True)
        wanted = torch.autograd.grad(alone[0, -1].sum(), parameters)
        for one, other in zip(found, wanted, strict=True):
            assert largest_error(one, other) < 1e-12


@pytest.mark.parametrize("scheme", [Sinusoidal(WIDTH), Learned(LONGEST, WIDTH), Rotary(8)])
def test_given_positions_are_those_counted(scheme: Learned) -> None:
    """``cumsum(mask) - 1``, as transformers counts, is ``q_offset`` = minus the padding."""
    layer = hw.MultiHeadAttention(WIDTH, 2, pattern=hw.Causal(), positions=scheme).double()
    x, padding = torch.randn(2, 5, WIDTH, dtype=torch.float64), torch.tensor([0, 3])
    real = torch.arange(5) >= padding[:, None]
    counted, offered = layer(x, kv_mask=real), layer(x, kv_mask=real, q_offset=-padding)
    assert largest_error(counted[real], offered[real]) < 1e-12
