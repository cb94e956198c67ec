"""K11, B82: assisted decoding wrote something else than greedy decoding.

transformers#30042, #30413, #30068, #30312: the position went on by one though several tokens were
accepted, and a static cache was replaced by a shorter tensor.
"""

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import headwise as hw
from headwise.positions import Rotary

WIDTH, WORDS, STEPS, GUESSES = 16, 13, 12, 3


class Guesser(nn.Module):
    """Two blocks with rotary positions over a vocabulary of 13."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(
            hw.nn.TransformerBlock(
                hw.MultiHeadAttention(
                    WIDTH, 4, num_kv_heads=2, pattern=hw.Causal(), positions=Rotary(4)
                ),
                hw.nn.FeedForward(WIDTH),
            )
            for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids: Tensor, cache: hw.KVCache | None = None) -> Tensor:
        """Return the likeliest word after each of ``ids``, (1, length)."""
        x = self.words(ids)
        for block in self.blocks:
            x = block(x, cache=cache)
        best: Tensor = self.head(x).argmax(-1)
        return best


def speculated(target: Guesser, guesses: Tensor, prompt: Tensor, cache: hw.KVCache) -> Tensor:
    """Write on, judging ``guesses`` at the next words, a few at a time; return prompt and words."""
    ids = torch.cat([prompt, target(prompt, cache)[:, -1:]], 1)
    end = prompt.shape[1] + STEPS
    while ids.shape[1] < end:
        length = ids.shape[1]
        guess = guesses[:, length : min(length + GUESSES, end - 1)]
        judged = target(torch.cat([ids[:, -1:], guess], 1), cache)
        right = int((judged[:, :-1] == guess).cumprod(-1).sum())
        ids = torch.cat([ids, judged[:, : right + 1]], 1)
        cache.crop(ids.shape[1] - 1)
    return ids


@torch.no_grad()
def greedy(model: Guesser, prompt: Tensor, window: int | None = None) -> Tensor:
    """Write on without a cache."""
    ids = prompt
    for _ in range(STEPS):
        kept = hw.KVCache() if window is None else hw.KVCache(window=window)
        ids = torch.cat([ids, model(ids, kept)[:, -1:]], 1)
    return ids


@pytest.mark.parametrize("dtype", [None, torch.float32], ids=str)
@pytest.mark.parametrize("kind", ["growing", "fixed", "window"])
@pytest.mark.parametrize("wrong", [0, 2, 3, 5], ids="every {} wrong".format)
@torch.no_grad()
def test_token_for_token_as_greedy(kind: str, wrong: int, dtype: torch.dtype | None) -> None:
    """The guesses: those of another model, or the right ones with some that are not."""
    target, prompt = Guesser(0), torch.tensor([[1, 5, 2, 8]])
    window = 6 if kind == "window" else None
    wanted = greedy(target, prompt, window)
    guesses = greedy(Guesser(1), prompt)
    if wrong:
        guesses = wanted.clone()
        guesses[:, ::wrong] = (guesses[:, ::wrong] + 1) % WORDS
    caches = {
        "growing": lambda: hw.KVCache(dtype=dtype),
        "fixed": lambda: hw.KVCache(capacity=20, dtype=dtype),
        "window": lambda: hw.KVCache(window=window, rollback=GUESSES, dtype=dtype),
    }
    cache = caches[kind]()
    assert torch.equal(speculated(target, guesses, prompt, cache), wanted)
    assert cache.length() == cache.length(1) == prompt.shape[1] + STEPS - 1


@torch.no_grad()
def test_room_that_never_moves_stays_where_it_is() -> None:
    target, prompt = Guesser(0), torch.tensor([[1, 5, 2, 8]])
    cache = hw.KVCache(capacity=20)
    target(prompt, cache)
    homes = [[held.untyped_storage().data_ptr() for held in cache.stored(n)] for n in (0, 1)]
    size, length = cache.nbytes, cache.length()
    for kept in (6, 5, 7):
        target(torch.tensor([[1, 2, 3, 4]]), cache)
        cache.crop(kept)
    cache.reset()
    target(prompt, cache)
    again = [[held.untyped_storage().data_ptr() for held in cache.stored(n)] for n in (0, 1)]
    assert (again, cache.nbytes, cache.length()) == (homes, size, length)


@torch.no_grad()
def test_positions_go_on_behind_what_was_accepted() -> None:
    """After two of four guesses the next token stands at the sixth place."""
    target, ids = Guesser(0), torch.tensor([[1, 5, 2, 8, 3, 3]])
    cache = hw.KVCache()
    target(torch.cat([ids[:, :4], ids.new_tensor([[3, 9, 9]])], 1), cache)
    cache.crop(5)
    target(ids[:, 5:], cache)
    fresh = hw.KVCache()
    for start, end in pairwise((0, 4, 5, 6)):
        target(ids[:, start:end], fresh)
    for one, other in zip(cache.stored(), fresh.stored(), strict=True):
        torch.testing.assert_close(one, other)
