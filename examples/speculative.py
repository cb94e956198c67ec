"""Speculative decoding: a quick draft guesses some bytes, the model judges them in one pass.

What the model would have written itself is kept, up to the first wrong guess; the cache gives the
rest back (``crop``). So the text is that of greedy decoding, byte for byte, in fewer passes of the
model. The draft here is the model's own first blocks.

    python examples/speculative.py
    python examples/speculative.py --guesses 6 --window 32
"""

# ruff: noqa: T201

import argparse
import json
from typing import NamedTuple

import torch
from cached_decoder import CachedDecoder, as_bytes
from decode import greedy
from torch import Tensor

import headwise as hw


class Written(NamedTuple):
    """What was written, and what it took.

    Attributes:
        ids: (1, steps) bytes.
        passes: How often the model ran, the reading of the prompt included.
        kept: How many guesses of the draft were right.
        guessed: How many it made.
    """

    ids: Tensor
    passes: int
    kept: int
    guessed: int


def speculate(
    model: CachedDecoder,
    draft: CachedDecoder,
    prompt: Tensor,
    steps: int,
    *,
    guesses: int,
    cache: hw.KVCache,
    draft_cache: hw.KVCache,
) -> Written:
    """Return what ``greedy`` of ``model`` writes.

    Args:
        model: Who decides.
        draft: Who guesses.
        prompt: (1, length) bytes.
        steps: How many to write.
        guesses: How many the draft makes before the model judges them.
        cache: An empty one for the model. A window must be able to give ``guesses`` tokens back.
        draft_cache: An empty one for the draft.
    """
    ids = torch.cat([prompt, model(prompt, cache)[:, -1:].argmax(-1)], 1)
    passes, kept, guessed = 1, 0, 0
    end = prompt.shape[1] + steps
    while ids.shape[1] < end:
        count = min(guesses, end - ids.shape[1] - 1)
        guess = ids[:, ids.shape[1] :]
        if count:
            # The draft has seen all but the last bytes, those it had not guessed itself.
            guess = greedy(draft, ids[:, draft_cache.length() :], count, draft_cache)
        judged = model(torch.cat([ids[:, -1:], guess], 1), cache).argmax(-1)
        right = int((judged[:, :-1] == guess).cumprod(-1).sum())
        ids = torch.cat([ids, judged[:, : right + 1]], 1)
        cache.crop(ids.shape[1] - 1)
        draft_cache.crop(ids.shape[1] - 1)
        passes, kept, guessed = passes + 1, kept + right, guessed + count
    return Written(ids[:, prompt.shape[1] :], passes, kept, guessed)


def main() -> None:
    """Write greedily and speculatively, compare, print."""
    options = read_options()
    model = CachedDecoder().eval()
    draft, prompt = model.shallow(options.draft_layers), as_bytes(options.prompt)

    def empty() -> hw.KVCache:
        return hw.KVCache(window=options.window, rollback=options.guesses)

    with torch.inference_mode():
        alone = greedy(model, prompt, options.steps, empty())
        together = speculate(
            model,
            draft,
            prompt,
            options.steps,
            guesses=options.guesses,
            cache=empty(),
            draft_cache=empty(),
        )
    found = {
        "same_as_greedy": torch.equal(together.ids, alone),
        "passes": together.passes,
        "passes_of_greedy": options.steps,
        "guesses_kept": together.kept,
        "guesses_made": together.guessed,
    }
    lines = (f"{name.replace('_', ' '):<18}{each}" for name, each in found.items())
    print(json.dumps(found) if options.json else "\n".join(lines))


def read_options() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default, meaning in (
        ("steps", 48, "bytes to write"),
        ("guesses", 3, "bytes the draft guesses at a time"),
        ("draft-layers", 3, "blocks of the draft; the model has 4"),
    ):
        parser.add_argument(
            f"--{name}", type=int, default=default, help=f"{meaning} (default {default})"
        )
    parser.add_argument("--window", type=int, help="bytes that each one sees; all of them if left")
    parser.add_argument("--prompt", default="Keys say where to look, values what is there.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    sizes = (options.steps, options.guesses, options.draft_layers, options.window or 1)
    if min(sizes) < 1 or options.draft_layers > 4 or not options.prompt:
        parser.error("--draft-layers lies between 1 and 4, other sizes start at 1; a byte to go on")
    return options


if __name__ == "__main__":
    main()
