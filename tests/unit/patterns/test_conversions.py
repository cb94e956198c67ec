"""The tables of docs/migrating/patterns.md, a test for each row."""

import re
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.nn.attention.flex_attention import create_block_mask, create_mask
from torch.nn.functional import scaled_dot_product_attention

import headwise as hw
from headwise.patterns import from_block_mask, from_mask_mod
from tests.docs.pages import ROOT, parsed
from tests.support.conversions import TESTED, row, same

PAGE = ROOT / "docs" / "migrating" / "patterns.md"
FLAGS = torch.rand(2, 3, 7, 9, generator=torch.Generator().manual_seed(0)) < 0.6
FLAGS[..., 0] = True
NUMBERS = torch.randn(2, 3, 7, 9, generator=torch.Generator().manual_seed(1))
IDS = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2])


def rows_of_the_page() -> list[str]:
    lines = PAGE.read_text("utf-8").splitlines()
    cells = [re.split(r"(?<!\\)\|", line)[1].strip() for line in lines if line.startswith("| ")]
    return [cell for cell in cells if cell not in ("theirs", "here")]


def test_every_row_has_a_test() -> None:
    import_module("tests.unit.patterns.test_conversions_of_hugging_face")
    assert set(rows_of_the_page()) == TESTED


@pytest.mark.usefixtures("plain_calls")
def test_the_page_runs_and_is_short() -> None:
    assert len(PAGE.read_text("utf-8").splitlines()) < 150
    for example in parsed(PAGE).examples():
        example.evaluate()


def said(first: int, last: int, row: int, length: int) -> list[int]:
    """Mark the keys from ``row + first`` to ``row + last``, by hand."""
    return [int(row + first <= key <= row + last) for key in range(length)]


def squares(*sizes: int) -> Tensor:
    """Mark squares of these sizes along the diagonal."""
    mask, first = torch.zeros(sum(sizes), sum(sizes)), 0
    for size in sizes:
        mask[first : first + size, first : first + size] = 1
        first += size
    return mask


def seen_by_sdpa(q_len: int, kv_len: int, **masks: Any) -> Tensor:
    """Return which keys bring their value to which query."""
    values = torch.eye(kv_len).expand(2, 3, -1, -1)
    zeros = torch.zeros(2, 3, max(q_len, kv_len), 4)
    found = scaled_dot_product_attention(zeros[:, :, :q_len], zeros[:, :, :kv_len], values, **masks)
    return found > 0


def mha_weights(**masks: Any) -> Tensor:
    """Return the weights of torch's layer for 2 samples, 3 heads, 7 queries and 9 keys."""
    layer = nn.MultiheadAttention(6, 3, batch_first=True)
    query, key = torch.ones(2, 7, 6), torch.randn(2, 9, 6)
    found: Tensor = layer(query, key, key, average_attn_weights=False, **masks)[1]
    return found


@row("SDPA: boolean `attn_mask` (`True` = keep)")
def test_a_boolean_mask_of_sdpa() -> None:
    same(hw.Dense(FLAGS), seen_by_sdpa(7, 9, attn_mask=FLAGS))


@row("SDPA: `attn_mask` of numbers")
def test_a_mask_of_numbers_of_sdpa() -> None:
    bias = NUMBERS.masked_fill(~FLAGS, float("-inf"))
    q, k, v = torch.randn(2, 3, 7, 4), torch.randn(2, 3, 9, 4), torch.randn(2, 3, 9, 4)
    theirs = scaled_dot_product_attention(q, k, v, attn_mask=bias)
    torch.testing.assert_close(hw.attend(q, k, v, bias=bias), theirs)


@row(
    "SDPA: `is_causal=True`, `causal_upper_left` (the first query beside the first key)",
)
def test_causal_from_the_upper_left() -> None:
    for masks in ({"is_causal": True}, {"attn_mask": causal_upper_left(7, 9)}):
        same(hw.Causal(), seen_by_sdpa(7, 9, **masks), q_offset=0)


@row("`causal_lower_right`")
def test_causal_from_the_lower_right() -> None:
    same(hw.Causal(), seen_by_sdpa(7, 9, attn_mask=causal_lower_right(7, 9)))


@row("`nn.MultiheadAttention`: `key_padding_mask` (`True` = drop)")
def test_padding_of_torchs_layer() -> None:
    drop = ~FLAGS[:, 0, 0]
    same(hw.KeyMask(~drop), mha_weights(key_padding_mask=drop) > 0)


@row("`nn.MultiheadAttention`: boolean `attn_mask` (`True` = drop)")
def test_a_boolean_mask_of_torchs_layer() -> None:
    drop = ~FLAGS[0, 0]
    same(hw.Dense(~drop), mha_weights(attn_mask=drop) > 0)


@row("`nn.MultiheadAttention`: `attn_mask` (batch · heads, q_len, kv_len)")
def test_a_mask_of_heads_of_torchs_layer() -> None:
    drop = ~FLAGS.flatten(0, 1)
    same(hw.Dense(~drop.view(2, 3, 7, 9)), mha_weights(attn_mask=drop) > 0)


@row("`nn.MultiheadAttention`: either mask as numbers")
def test_masks_of_numbers_of_torchs_layer() -> None:
    padding, pairs = NUMBERS[:, 0, 0], NUMBERS[0, 0]
    torch.manual_seed(5)
    plain = mha_weights()
    zeros = torch.zeros(2, 3, 7, 4), torch.zeros(2, 3, 9, 4)
    for masks, bias in (
        ({"key_padding_mask": padding}, padding[:, None, None]),
        ({"attn_mask": pairs}, pairs),
    ):
        torch.manual_seed(5)
        theirs = (plain.log() + bias).softmax(-1)
        torch.testing.assert_close(mha_weights(**masks), theirs)
        ours = hw.attention_weights(*zeros, bias=bias)
        torch.testing.assert_close(ours, bias.expand(2, 3, 7, 9).softmax(-1))


@row("`generate_square_subsequent_mask(n)`")
def test_a_subsequent_mask() -> None:
    same(hw.Causal(), nn.Transformer.generate_square_subsequent_mask(9) == 0)


def band(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return ((q - k).abs() <= 2 + h) & (k < 5 + b)


@row("FlexAttention: `mask_mod`")
def test_a_mask_function_of_flex() -> None:
    same(from_mask_mod(band, 2, 3, 7, 9, 4), create_mask(band, 2, 3, 7, 9, "cpu"))


@row("FlexAttention: `BlockMask`")
def test_a_block_mask_of_flex() -> None:
    block_mask = create_block_mask(band, 2, 3, 7, 9, "cpu", BLOCK_SIZE=4)
    same(from_block_mask(block_mask), create_mask(band, 2, 3, 7, 9, "cpu"))


@row("flash-attention: `causal=True`")
def test_causal_of_flash() -> None:
    # Its documentation draws 2 queries and 5 keys, then 5 queries and 2 keys.
    same(hw.Causal(), torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]))
    same(hw.Causal(), torch.tensor([[0, 0], [0, 0], [0, 0], [1, 0], [1, 1]]))


@row("flash-attention: `window_size=(left, right)`, -1 = no bound")
def test_a_window_of_flash() -> None:
    # Query i sees the keys from i + kv_len - q_len - left to i + kv_len - q_len + right.
    same(hw.Window(2, 1), torch.tensor([said(-2 + 2, 1 + 2, i, 9) for i in range(7)]))
    same(hw.Window(None, 1), torch.tensor([said(-99, 1 + 2, i, 9) for i in range(7)]))
    same(hw.Window(2, None), torch.tensor([said(-2 + 2, 99, i, 9) for i in range(7)]))


@row("flash-attention: `window_size=(left, right)` with `causal=True`")
def test_a_causal_window_of_flash() -> None:
    same(hw.Window(2, 0), torch.tensor([said(-2 + 2, 0 + 2, i, 9) for i in range(7)]))
    same(hw.Window(2, 5) & hw.Causal(), hw.Window(2, 0).dense(7, 9))


@row("flash-attention: `cu_seqlens` of queries and keys")
def test_lengths_of_flash() -> None:
    pattern = hw.Documents.from_cu_seqlens([0, 2, 3], [0, 1, 4])
    same(pattern, torch.tensor([[1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 1, 1]]), q_offset=0)


@row("flash-attention: one `cu_seqlens` for both, `causal=True`")
def test_causal_lengths_of_flash() -> None:
    pattern = hw.Documents.from_cu_seqlens([0, 2, 5]) & hw.Causal()
    both = squares(2, 3).tril()
    same(pattern, both)


@row("xFormers: `LowerTriangularMask` (the first query beside the first key)")
def test_xformers_lower_triangle() -> None:
    same(hw.Causal(), torch.ones(2, 4).tril(), q_offset=0)


@row("xFormers: `LowerTriangularFromBottomRightMask`")
def test_xformers_lower_triangle_from_the_right() -> None:
    same(hw.Causal(), torch.ones(2, 4).tril(2))


@row("xFormers: `BlockDiagonalMask`")
def test_xformers_blocks() -> None:
    same(hw.Documents(IDS), squares(3, 4, 2))


@row("xFormers: `BlockDiagonalCausalMask`")
def test_xformers_causal_blocks() -> None:
    mask = squares(3, 4, 2).tril()
    same(hw.Documents(IDS) & hw.Causal(), mask)


@row("xFormers: `LocalAttentionFromBottomRightMask(window_left, window_right)`")
def test_xformers_local_attention() -> None:
    same(hw.Window(2, 1), torch.tensor([said(-2 + 3, 1 + 3, i, 8) for i in range(5)]))


@row("`pattern.dense(q_len, kv_len)`")
def test_a_mask_for_sdpa() -> None:
    pattern = hw.Causal() & hw.Lengths((9, 5))
    same(pattern, seen_by_sdpa(7, 9, attn_mask=pattern.dense(7, 9)))


@row("`~pattern.dense(q_len, kv_len)`")
def test_a_mask_for_torchs_layer() -> None:
    pattern = hw.Causal() & hw.Window(3, 0)
    same(pattern, mha_weights(attn_mask=~pattern.dense(7, 9)) > 0)


@row("`pattern.mask_mod(q_len, kv_len)`")
def test_a_mask_function_for_flex() -> None:
    pattern = hw.Causal() & hw.Lengths((9, 5))
    same(pattern, create_mask(pattern.mask_mod(7, 9), 2, 3, 7, 9, "cpu"))


@row("`pattern.block_mask(q_len, kv_len, batch, heads)`")
def test_a_block_mask_for_flex() -> None:
    pattern = hw.Causal() & hw.Lengths((9, 5))
    theirs = create_block_mask(pattern.mask_mod(7, 9), 2, 3, 7, 9, "cpu")
    assert torch.equal(pattern.block_mask(7, 9, 2, 3).to_dense(), theirs.to_dense())
