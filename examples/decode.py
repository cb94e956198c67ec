"""Write on with a decoder and a cache: greedily, by sampling, and by beam search.

Every way first reads the prompt, then feeds the model one byte a step. The model has random
weights, so what it writes means nothing; that the cache changes nothing but the time is the point.

    python examples/decode.py
    python examples/decode.py --steps 400 --dtype int8
"""

# ruff: noqa: T201

import argparse
import json
import time
from typing import NamedTuple

import torch
from cached_decoder import CachedDecoder, as_bytes
from torch import Tensor

import headwise as hw


def greedy(model: CachedDecoder, prompt: Tensor, steps: int, cache: hw.KVCache) -> Tensor:
    """Return (batch, steps) bytes, each the likeliest one."""
    found, new = [], prompt
    for _ in range(steps):
        new = model(new, cache)[:, -1:].argmax(-1)
        found.append(new)
    return torch.cat(found, 1)


def greedy_without_cache(model: CachedDecoder, prompt: Tensor, steps: int) -> Tensor:
    """Return the same as ``greedy``, by reading everything anew at every step."""
    ids = prompt
    for _ in range(steps):
        ids = torch.cat([ids, model(ids)[:, -1:].argmax(-1)], 1)
    return ids[:, prompt.shape[1] :]


def sample(
    model: CachedDecoder,
    prompt: Tensor,
    steps: int,
    cache: hw.KVCache,
    *,
    temperature: float,
    generator: torch.Generator,
) -> Tensor:
    """Return (batch, steps) bytes, each drawn by how likely it is.

    Args:
        model: Who guesses.
        prompt: (batch, length) bytes.
        steps: How many to write.
        cache: An empty one.
        temperature: Near 0 = nearly greedy; 1 = as the model says.
        generator: Where the numbers come from.
    """
    found, new = [], prompt
    for _ in range(steps):
        chances = (model(new, cache)[:, -1] / temperature).softmax(-1)
        new = torch.multinomial(chances, 1, generator=generator)
        found.append(new)
    return torch.cat(found, 1)


class Beams(NamedTuple):
    """The best continuations of each prompt, best first.

    Attributes:
        ids: (batch, beams, steps).
        scores: (batch, beams), logarithms of how likely they are.
    """

    ids: Tensor
    scores: Tensor


def beam_search(
    model: CachedDecoder, prompt: Tensor, steps: int, cache: hw.KVCache, *, beams: int
) -> Beams:
    """Keep the ``beams`` likeliest continuations of every prompt at each step.

    A beam that splits is copied and one that ends is dropped: ``cache.reorder`` does it for all
    layers at once. The prompt is read once, not once for each beam.
    """
    batch = prompt.shape[0]
    logs = model(prompt, cache)[:, -1].log_softmax(-1)
    scores, new = logs.topk(beams)
    cache.reorder(torch.arange(batch).repeat_interleave(beams))
    ids = new.unsqueeze(-1)
    first = torch.arange(batch).unsqueeze(1) * beams
    for _ in range(steps - 1):
        logs = model(new.reshape(-1, 1), cache)[:, -1].log_softmax(-1)
        vocabulary = logs.shape[-1]
        reached = scores.unsqueeze(-1) + logs.view(batch, beams, vocabulary)
        scores, chosen = reached.flatten(1).topk(beams)
        source, new = chosen // vocabulary, chosen % vocabulary
        cache.reorder((first + source).flatten())
        kept = ids.gather(1, source.unsqueeze(-1).expand_as(ids))
        ids = torch.cat([kept, new.unsqueeze(-1)], -1)
    return Beams(ids, scores)


def main() -> None:
    """Write on in every way; print what came out, and what it took."""
    options = read_options()
    model, prompt = CachedDecoder().eval(), as_bytes(options.prompt)
    dtype = None if options.dtype is None else getattr(torch, options.dtype)

    def empty() -> hw.KVCache:
        return hw.KVCache(dtype=dtype)

    cache = empty()
    generator = torch.Generator().manual_seed(options.seed)
    with torch.inference_mode():
        started = time.perf_counter()
        cached = greedy(model, prompt, options.steps, cache)
        stepped = time.perf_counter()
        plain = greedy_without_cache(model, prompt, options.steps)
        ended = time.perf_counter()
        drawn = sample(
            model,
            prompt,
            options.steps,
            empty(),
            temperature=options.temperature,
            generator=generator,
        )
        best = beam_search(model, prompt, options.steps, empty(), beams=options.beams)
    found = {
        "greedy": cached[0].tolist(),
        "sampled": drawn[0].tolist(),
        "beams": best.ids[0].tolist(),
        "scores": best.scores[0].tolist(),
        "same_without_cache": torch.equal(cached, plain),
        "milliseconds_a_step": 1e3 * (stepped - started) / options.steps,
        "milliseconds_a_step_without_cache": 1e3 * (ended - stepped) / options.steps,
        "cache_bytes": cache.nbytes,
    }
    print(json.dumps(found) if options.json else summary(found))


def summary(found: dict[str, object]) -> str:
    """Return what was found as lines for people."""
    wide = max(map(len, found))
    return "\n".join(f"{name.replace('_', ' '):<{wide}}  {each}" for name, each in found.items())


def read_options() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default, meaning in (
        ("steps", 24, "bytes to write"),
        ("beams", 3, "continuations that beam search keeps"),
        ("seed", 0, "of the sampling"),
    ):
        parser.add_argument(
            f"--{name}", type=int, default=default, help=f"{meaning} (default {default})"
        )
    parser.add_argument("--temperature", type=float, default=0.7, help="of the sampling")
    parser.add_argument("--prompt", default="Keys say where to look, values what is there.")
    parser.add_argument("--dtype", choices=("int8", "bfloat16", "float16"), help="of the cache")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    if min(options.steps, options.beams) < 1 or options.temperature <= 0 or not options.prompt:
        parser.error("--steps and --beams start at 1, --temperature above 0; --prompt has a byte")
    return options


if __name__ == "__main__":
    main()
