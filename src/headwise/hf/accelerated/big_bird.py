"""BigBird: its block-sparse attention, its full one, and the switch between them."""

from transformers.models.big_bird.modeling_big_bird import (
    BigBirdAttention,
    BigBirdBlockSparseAttention,
    BigBirdSelfAttention,
)
from typing_extensions import override

from headwise.hf.accelerated.block_sparse import (
    forward_in_blocks,
    forward_in_full,
    keep_fast,
)
from headwise.hf.accelerated.refusals import never, without_core


class FastBlockSparseAttention(BigBirdBlockSparseAttention):
    """Window, ends and random blocks through ``attend``, in memory linear in length."""

    hands_over = "calls that ask for weights, and those that no model makes,"
    refusal = staticmethod(without_core)
    forward = forward_in_blocks


class FastSelfAttention(BigBirdSelfAttention):
    """Full attention through ``attend``, with a cache or without."""

    hands_over = "calls that name a cache as older versions of transformers did"
    refusal = staticmethod(never)
    forward = forward_in_full


class SwitchingAttention(BigBirdAttention):
    """Keeps the attention inside fast when a model turns from block-sparse to full, or back."""

    refusal = staticmethod(never)

    @override
    def set_attention_type(self, value: str, layer_idx: int | None = None) -> None:
        super().set_attention_type(value, layer_idx)
        keep_fast(self)


SWAPS: dict[type, type] = {
    BigBirdAttention: SwitchingAttention,
    BigBirdBlockSparseAttention: FastBlockSparseAttention,
    BigBirdSelfAttention: FastSelfAttention,
}
