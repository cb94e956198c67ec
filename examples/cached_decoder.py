"""A small decoder over bytes that reads what came before from a cache."""

import torch
from torch import Tensor, nn

import headwise as hw

VOCABULARY = 256
EARLIER = hw.Causal()


class CachedDecoder(nn.Module):
    """Scores the next byte after each of those it is given.

    Args:
        width: Width of the model.
        heads: Query heads; must divide ``width``.
        kv_heads: Key/value heads; must divide ``heads``.
        layers: Blocks.
        pattern: Which bytes each one sees; must be causal.
        seed: Of the weights, which nobody has trained.
    """

    def __init__(
        self,
        width: int = 64,
        heads: int = 4,
        kv_heads: int = 2,
        layers: int = 4,
        *,
        pattern: hw.patterns.Pattern = EARLIER,
        seed: int = 0,
    ) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.bytes = nn.Embedding(VOCABULARY, width)
            self.blocks = nn.ModuleList(
                hw.nn.TransformerBlock(
                    hw.MultiHeadAttention(
                        width,
                        heads,
                        num_kv_heads=kv_heads,
                        pattern=pattern,
                        positions=hw.positions.Rotary(width // heads),
                    ),
                    hw.nn.FeedForward(width),
                )
                for _ in range(layers)
            )
            self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, VOCABULARY))

    def forward(self, ids: Tensor, cache: hw.KVCache | None = None) -> Tensor:
        """Return (batch, length, 256) scores.

        Args:
            ids: (batch, length) bytes; with a cache the new ones alone.
            cache: What was seen before; ``ids`` are added to it.
        """
        x = self.bytes(ids)
        for block in self.blocks:
            x = block(x, cache=cache)
        scores: Tensor = self.head(x)
        return scores

    def shallow(self, layers: int) -> "CachedDecoder":
        """Return a quicker guesser: the first blocks of this one, with its head."""
        draft = CachedDecoder(self.bytes.embedding_dim, layers=0)
        draft.bytes, draft.blocks, draft.head = self.bytes, self.blocks[:layers], self.head
        return draft


def as_bytes(text: str) -> Tensor:
    """Return a text as (1, length) bytes."""
    return torch.tensor([list(text.encode())])
