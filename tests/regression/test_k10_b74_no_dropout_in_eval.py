"""B74: attention dropout stayed on in eval, because the functional call has no training flag."""

import torch

import headwise as hw
from tests.support.budget import assert_same_bits
from tests.support.paths import Path, on_layers


@on_layers
def test_eval_repeats_itself_and_draws_nothing(path: Path) -> None:
    layer = hw.MultiHeadAttention(8, 2, dropout=0.5)
    without = hw.MultiHeadAttention(8, 2)
    without.load_state_dict(layer.state_dict())
    x = torch.randn(2, 60, 8)
    with path.taken():
        before = torch.get_rng_state()
        outputs = [layer.eval()(x) for _ in range(2)]
        assert torch.equal(torch.get_rng_state(), before)
        for output in outputs:
            assert_same_bits(output, without(x))
        assert not torch.equal(layer.train()(x), outputs[0])
        assert not torch.equal(torch.get_rng_state(), before)


@on_layers
def test_a_share_of_zero_draws_nothing(path: Path) -> None:
    query, key, value = torch.randn(3, 1, 2, 60, 8).unbind(0)
    with path.taken() as backend:
        before = torch.get_rng_state()
        hw.attend(query, key, value, dropout_p=0.0, backend=backend)
        assert torch.equal(torch.get_rng_state(), before)
