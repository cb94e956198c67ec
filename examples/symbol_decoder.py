"""A small decoder over symbols, with softmax or linear attention or random features."""

from torch import Tensor, nn

import headwise as hw

KINDS = ("softmax", "linear", "performer")


def mechanism(attention: str, features: int, layer: int) -> hw.nn.Mechanism | None:
    """Return the mechanism of a layer; ``None`` is softmax attention."""
    match attention:
        case "softmax":
            return None
        case "linear":
            return hw.nn.LinearAttention("elu")
        case "performer":
            return hw.nn.RandomFeatures(features, seed=layer)
    raise ValueError(f"attention must be one of {', '.join(KINDS)}, got {attention!r}")


class Decoder(nn.Module):
    """Scores the next symbol after each of those it is given.

    A symbol comes in together with the one before it. A key and its value are then one thing from
    the first layer on, and no layer has to learn to look one symbol back.

    Args:
        attention: One of ``KINDS``.
        vocabulary: Symbols there are.
        context: The longest sample.
        width: Width of the model.
        heads: Attention heads; must divide ``width``.
        layers: Blocks.
        features: Random features of a token, for ``"performer"``.
    """

    def __init__(
        self,
        attention: str,
        vocabulary: int,
        context: int,
        *,
        width: int,
        heads: int,
        layers: int,
        features: int,
    ) -> None:
        super().__init__()
        self.symbol, self.before = (nn.Embedding(vocabulary, width) for _ in range(2))
        positions = hw.positions.Learned(context, width)
        nn.init.normal_(positions.weight)  # as large as the normalised tokens they are added to
        self.blocks = nn.ModuleList(
            hw.nn.TransformerBlock(
                hw.MultiHeadAttention(
                    width,
                    heads,
                    pattern=hw.Causal(),
                    positions=positions,
                    mechanism=mechanism(attention, features, layer),
                ),
                hw.nn.FeedForward(width),
            )
            for layer in range(layers)
        )
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, vocabulary))

    def forward(self, ids: Tensor, cache: hw.KVCache | None = None) -> Tensor:
        """Return (batch, length, vocabulary) scores.

        Args:
            ids: (batch, 1 + length) symbols; the first one is only looked back at.
            cache: What was read before.
        """
        x = self.symbol(ids[:, 1:]) + self.before(ids[:, :-1])
        for block in self.blocks:
            x = block(x, cache=cache)
        scores: Tensor = self.head(x)
        return scores
