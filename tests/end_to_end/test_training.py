"""A tiny model learns through the layer, and generates with the cache what it would without."""

import torch
from torch import Tensor, nn

import headwise as hw

LETTERS, WIDTH, PERIOD = 11, 24, 7


class Tiny(nn.Module):
    """One attention block over letters and positions."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(LETTERS, WIDTH)
        self.places = nn.Embedding(64, WIDTH)
        self.attention = hw.MultiHeadAttention(WIDTH, 4, num_kv_heads=2, pattern=hw.Causal())
        self.head = nn.Linear(WIDTH, LETTERS)

    def forward(self, ids: Tensor, cache: hw.KVCache | None = None) -> Tensor:
        start = 0 if cache is None else cache.length()
        x = self.letters(ids) + self.places(torch.arange(start, start + ids.shape[1]))
        logits: Tensor = self.head(x + self.attention(x, cache=cache))
        return logits


def test_loss_falls_and_cached_generation_agrees() -> None:
    model = Tiny()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    ids = (torch.arange(32) % PERIOD).repeat(4, 1) + torch.arange(4).view(4, 1)
    losses = []
    for _ in range(60):
        logits = model(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]

    with torch.no_grad():
        plain = cached = ids[:, :9]
        cache = hw.KVCache()
        step = cached
        for _ in range(20):
            plain = torch.cat([plain, model(plain)[:, -1:].argmax(-1)], 1)
            step = model(step, cache)[:, -1:].argmax(-1)
            cached = torch.cat([cached, step], 1)
    assert torch.equal(plain, cached)
    assert torch.equal(cached, ids[:, :29])
