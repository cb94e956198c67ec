"""BigBirdPegasus's encoder: its block-sparse attention, its full one, and the switch between them.

Its decoder attends through the interface of transformers, which ``hf.attention`` serves.
"""

from transformers.models.bigbird_pegasus.modeling_bigbird_pegasus import (
    BigBirdPegasusBlockSparseAttention,
    BigBirdPegasusEncoderAttention,
    BigBirdPegasusSelfAttention,
)
from typing_extensions import override

from headwise.hf.accelerated.block_sparse import (
    forward_in_blocks,
    forward_in_full,
    keep_fast,
)
from headwise.hf.accelerated.refusals import never, without_core


class FastBlockSparseAttention(BigBirdPegasusBlockSparseAttention):
    """Window, ends and random blocks through ``attend``, in memory linear in length."""

    hands_over = "calls that ask for weights, and those that no model makes,"
    refusal = staticmethod(without_core)
    forward = forward_in_blocks


class FastSelfAttention(BigBirdPegasusSelfAttention):
    """Full attention through ``attend``, with a cache or without."""

    hands_over = "calls that name a cache as older versions of transformers did"
    refusal = staticmethod(never)
    forward = forward_in_full


class SwitchingEncoderAttention(BigBirdPegasusEncoderAttention):
    """Keeps the attention inside fast when a model turns from block-sparse to full, or back."""

    refusal = staticmethod(never)

    @override
    def set_attention_type(self, value: str) -> None:
        super().set_attention_type(value)
        keep_fast(self)


SWAPS: dict[type, type] = {
    BigBirdPegasusEncoderAttention: SwitchingEncoderAttention,
    BigBirdPegasusBlockSparseAttention: FastBlockSparseAttention,
    BigBirdPegasusSelfAttention: FastSelfAttention,
}
