"""The table of docs/migrating/patterns.md about Hugging Face, a test for each row."""

from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import masking_utils

import headwise as hw
from tests.support.conversions import row, same
from tests.support.longformer import tiny_longformer

REAL = torch.rand(2, 9, generator=torch.Generator().manual_seed(0)) < 0.6
IDS = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2])


def asked(mask_function: Any, **given: Any) -> Tensor:
    """Let transformers spell out a mask for 2 samples of 9 tokens."""
    found: Any = masking_utils.sdpa_mask(
        2, 9, 9, mask_function=mask_function, allow_is_causal_skip=False, **given
    )
    assert isinstance(found, Tensor)
    return found


@row("`attention_mask` (batch, tokens), 1 = real")
def test_padding() -> None:
    mask = asked(masking_utils.bidirectional_mask_function, attention_mask=REAL)
    same(hw.KeyMask(REAL.long()), mask)


@row("`attention_mask` of 0 and `finfo.min`, four dimensions")
def test_a_mask_of_huge_numbers() -> None:
    mask = masking_utils.eager_mask(
        2, 9, 9, mask_function=masking_utils.causal_mask_function, dtype=torch.float32
    )
    assert mask.min() == torch.finfo(torch.float32).min
    same(hw.Dense(mask == 0), hw.Causal().dense(9, 9).expand(2, 1, 9, 9))


@row("`sliding_window=n` of a decoder (`n` keys, itself included)")
def test_a_causal_window() -> None:
    same(
        hw.patterns.sliding_causal(3),
        asked(masking_utils.sliding_window_causal_mask_function(3)),
    )


@row("`sliding_window=n` of an encoder (`n` on each side)")
def test_a_window_of_both_sides() -> None:
    same(hw.Window(3, 3), asked(masking_utils.sliding_window_bidirectional_mask_function(3)))


@row("`attention_chunk_size=n` (Llama 4)")
def test_chunks() -> None:
    chunks = masking_utils.chunked_causal_mask_function(4, torch.zeros(2, dtype=torch.int64))
    same(hw.BlockWindow(4, 0, 0) & hw.Causal(), asked(chunks))


@row("packed sequences by `position_ids` that start again")
def test_packed_sequences() -> None:
    position_ids = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 0, 1]]).expand(2, -1)
    packed = masking_utils.find_packed_sequence_indices(position_ids)
    assert packed is not None
    function = masking_utils.and_masks(
        masking_utils.causal_mask_function, masking_utils.packed_sequence_mask_function(packed)
    )
    same(hw.Documents(IDS) & hw.Causal(), asked(function))


def reached(model: Any, length: int, width: int, **given: Any) -> Tensor:
    """Return which outputs of a model of one layer change with which inputs, (length, length)."""
    with torch.no_grad():
        x = torch.randn(1, length, width, dtype=torch.float64)
        changed = x + torch.eye(length).unsqueeze(-1) * torch.randn(width)
        before = model(inputs_embeds=x, **given).last_hidden_state
        after = torch.cat(
            [
                model(inputs_embeds=part, **given).last_hidden_state
                for part in torch.split(changed, 1)
            ]
        )
    told: Tensor = (after - before).abs().amax(-1) > 1e-9
    return told.mT


@row("Longformer: `attention_window=n` (both sides together), `global_attention_mask`")
def test_longformer() -> None:
    model = tiny_longformer(4).double()
    chosen = torch.zeros(1, 20, dtype=torch.int64)
    chosen[0, [0, 11]] = 1
    found = reached(model, 20, model.config.hidden_size, global_attention_mask=chosen)
    same(hw.patterns.longformer(4, chosen.bool()), found.expand(1, 1, 20, 20))


def tiny_bigbird() -> Any:
    config = transformers.BigBirdConfig(
        vocab_size=61,
        hidden_size=12,
        num_attention_heads=2,
        num_hidden_layers=1,
        intermediate_size=20,
        max_position_embeddings=64,
        block_size=4,
        num_random_blocks=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return transformers.BigBirdModel(config, add_pooling_layer=False).double()


@row("BigBird: `block_size`, `num_random_blocks`, in training")
def test_bigbird_in_training() -> None:
    found = reached(tiny_bigbird().train(), 48, 12)
    fixed = hw.patterns.bigbird(4, 3, 1, 0)
    drawn = found & ~fixed.dense(48, 48)
    ours = hw.patterns.bigbird(4, 3, 1, 1, 0).dense(48, 48) & ~fixed.dense(48, 48)
    for extra in (drawn, ours):
        blocks = extra.view(12, 4, 12, 4).any(3).any(1)
        assert (blocks[1:-1].sum(1) >= 1).all()
        assert not blocks[[0, -1]].any()


@row("BigBird: the same in evaluation, where it draws block 0 again and again")
def test_bigbird_in_evaluation() -> None:
    same(hw.patterns.bigbird(4, 3, 1, 0), reached(tiny_bigbird().eval(), 48, 12))
