"""A small decoder over bytes whose attention is whatever one hands it."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

import headwise as hw

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]

VOCABULARY = 256


class Block(nn.Module):
    """Attention, then a feed-forward part, each beside a residual path.

    ``hw.nn.TransformerBlock`` is the same with the layer's own attention.
    """

    def __init__(self, width: int, heads: int, attention: Attention) -> None:
        super().__init__()
        self.attention = attention
        self.before_attention = nn.LayerNorm(width)
        self.projections = hw.MultiHeadAttention(width, heads)
        self.before_feed_forward = nn.LayerNorm(width)
        self.feed_forward = hw.nn.FeedForward(width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length, width) to the same."""
        layer = self.projections
        query, key, value = layer.project(self.before_attention(x))
        context = self.attention(query, key, value)
        x = x + layer.W_o(layer.combine_heads(context))
        mixed: Tensor = x + self.feed_forward(self.before_feed_forward(x))
        return mixed


class Decoder(nn.Module):
    """Guesses the next byte from those before it.

    Args:
        width: Width of the model.
        heads: Attention heads; must divide ``width``.
        layers: Blocks.
        context: The longest input, in bytes.
        attention: Takes query, key and value, (batch, heads, length, head_dim); must be causal.
    """

    def __init__(
        self, width: int, heads: int, layers: int, context: int, attention: Attention
    ) -> None:
        super().__init__()
        self.bytes = nn.Embedding(VOCABULARY, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads, attention) for _ in range(layers)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, VOCABULARY))
        for table in (self.bytes, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        """Return (batch, length, 256) scores of the byte after each of ``ids``."""
        x = self.bytes(ids) + self.places(torch.arange(ids.shape[1]))
        scores: Tensor = self.head(self.blocks(x))
        return scores

    def loss(self, ids: Tensor) -> Tensor:
        """Return the mean surprise, in nats, at each byte but the first."""
        scores = self(ids[:, :-1]).float().flatten(0, 1)
        return functional.cross_entropy(scores, ids[:, 1:].flatten())
