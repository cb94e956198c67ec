"""hf.big_bird: what it says of both modes, what it leaves alone, what it refuses."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn

import headwise as hw

BLOCK, RANDOM, HEADS = 4, 2, 3


def model(training: bool = False) -> Any:
    config = transformers.BigBirdConfig(
        vocab_size=61,
        hidden_size=12,
        num_attention_heads=HEADS,
        num_hidden_layers=2,
        intermediate_size=8,
        block_size=BLOCK,
        num_random_blocks=RANDOM,
        max_position_embeddings=64,
    )
    made: Any = transformers.BigBirdModel(config)
    return made.train(training)


def attention(layer: int = 1, training: bool = False) -> Any:
    return model(training).encoder.layer[layer].attention.self


def test_evaluation_is_no_random_block_and_more_weight_on_the_first() -> None:
    length = 11 * BLOCK - 1
    pattern, bias = hw.hf.big_bird(attention(), length)
    paper = hw.patterns.bigbird(BLOCK, 3, 1, 0)
    assert torch.equal(pattern.dense(length, length)[0, 0], paper.dense(length, length))
    assert bias is not None
    expected = torch.zeros(length, length)
    expected[BLOCK : 10 * BLOCK, :BLOCK] = np.log(1 + RANDOM)
    torch.testing.assert_close(bias, expected[None, None])


def test_training_is_random_blocks_and_no_bias() -> None:
    pattern, bias = hw.hf.big_bird(attention(training=True), 12 * BLOCK)
    assert bias is None
    seen = pattern.dense(12 * BLOCK, 12 * BLOCK)[0, :, ::BLOCK, ::BLOCK]
    window = hw.patterns.bigbird(BLOCK, 3, 1, 0).dense(12 * BLOCK, 12 * BLOCK)[::BLOCK, ::BLOCK]
    assert bool((seen | ~window).all())
    assert bool(((seen & ~window).sum(-1)[:, 1:-1] == RANDOM).all())
    assert not torch.equal(seen[0], seen[1])


def test_the_mode_can_be_asked_for() -> None:
    evaluating, training = attention(), attention(training=True)
    for given, asked, like in ((evaluating, True, training), (training, False, evaluating)):
        mine, theirs = hw.hf.big_bird(given, 50, training=asked), hw.hf.big_bird(like, 50)
        assert mine.pattern == theirs.pattern
        assert (mine.bias is None) == (theirs.bias is None)
        assert given.training != asked


def test_layers_draw_their_own_blocks_and_numpy_keeps_its_state() -> None:
    np.random.seed(5)
    wanted = np.random.rand()
    np.random.seed(5)
    first, again, other = (
        hw.hf.big_bird(attention(layer, training=True), 60).pattern for layer in (0, 0, 1)
    )
    assert np.random.rand() == wanted
    assert first == again
    assert first != other


def test_short_inputs_stay_sparse_where_the_model_turns_to_full_attention() -> None:
    whole = model()
    sparse = whole.encoder.layer[0].attention.self
    length = (5 + 2 * RANDOM) * BLOCK
    whole(torch.randint(1, 61, (1, length)))
    assert type(whole.encoder.layer[0].attention.self).__name__ == "BigBirdSelfAttention"
    seen = hw.hf.big_bird(sparse, length).pattern.dense(length, length)
    assert not bool(seen.all())


def test_bias_is_float32_or_wider_on_the_device_of_the_weights() -> None:
    for dtype, wanted in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
        bias = hw.hf.big_bird(attention().to(dtype), 50).bias
        assert bias is not None
        assert bias.dtype == wanted
    assert hw.hf.big_bird(attention().to("meta"), 50).bias.device.type == "meta"  # type: ignore[union-attr]


Wrong = Callable[[], object]
REFUSED: list[tuple[Wrong, type[Exception], str]] = [
    (lambda: hw.hf.big_bird(nn.Linear(2, 2), 50), TypeError, "got Linear\n  hint: it is model."),
    (lambda: hw.hf.big_bird(model(), 50), TypeError, "set_attention_type('block_sparse')"),
    (lambda: hw.hf.big_bird(attention(), 12), hw.ShapeError, "at least 4 blocks of 4 tokens"),
    (
        lambda: hw.hf.big_bird(attention(), 20, training=True),
        hw.PatternError,
        "cannot draw 2 random blocks for an input of 5 blocks",
    ),
]


@pytest.mark.parametrize(("wrong", "kind", "text"), REFUSED, ids=[text for *_, text in REFUSED])
def test_refusals(wrong: Wrong, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as caught:
        wrong()
    assert text in str(caught.value)


def test_training_without_a_seed_is_refused() -> None:
    unseeded = attention(training=True)
    unseeded.seed = None
    with pytest.raises(hw.PatternError, match="must have a seed to draw from"):
        hw.hf.big_bird(unseeded, 60)
