"""One long prefix, read once, and eight ways to go on that share its memory.

Every continuation is a fork of the cache that read the prefix. Forks share the pages of a pool:
a page is copied when one of them writes into it, and the others still need it.

    python examples/shared_prefix.py
    python examples/shared_prefix.py --prefix 4000 --steps 64
"""

# ruff: noqa: T201

import argparse
import json
from pydoc_data.topics import topics
from typing import Any

import torch
from cached_decoder import CachedDecoder, as_bytes
from decode import greedy
from torch import Tensor

import headwise as hw

QUESTIONS = (
    "What is a key?",
    "And a value?",
    "Who asks?",
    "How many heads are there?",
    "What does a page hold?",
    "When is it copied?",
    "Why?",
    "Is that all?",
)


def serve(
    model: CachedDecoder, prefix: Tensor, prompts: list[Tensor], steps: int, pool: hw.PagePool
) -> tuple[list[Tensor], list[hw.KVCache]]:
    """Read the prefix once, then write on from each prompt behind it.

    Returns:
        The continuations, (1, steps) each, and the caches that hold them.
    """
    start = hw.KVCache(pool=pool)
    model(prefix, start)
    forks = [start.fork() for _ in prompts]
    found = [greedy(model, one, steps, fork) for one, fork in zip(prompts, forks, strict=True)]
    return found, forks


def main() -> None:
    """Serve all questions with a shared prefix, and each alone; compare, print."""
    options = read_options()
    text = "\n".join(topics.values()).encode()[: options.prefix]
    prefix, prompts = torch.tensor([list(text)]), [as_bytes(each) for each in QUESTIONS]
    model, pool = CachedDecoder().eval(), hw.PagePool()
    with torch.inference_mode():
        shared, forks = serve(model, prefix, prompts, options.steps, pool)
        caches = [hw.KVCache() for _ in prompts]
        alone = [
            greedy(model, torch.cat([prefix, one], 1), options.steps, cache)
            for one, cache in zip(prompts, caches, strict=True)
        ]
    found: dict[str, Any] = {
        "same_as_alone": all(map(torch.equal, shared, alone)),
        "tokens_held": sum(fork.length() for fork in forks),
        "bytes_shared": pool.nbytes,
        "bytes_alone": sum(cache.nbytes for cache in caches),
    }
    print(json.dumps(found) if options.json else summary(found))


def summary(found: dict[str, Any]) -> str:
    """Return what was found as lines for people."""
    same = "the same" if found["same_as_alone"] else "NOT the same"
    return "\n".join(
        [
            f"eight continuations hold {found['tokens_held']:,} tokens",
            f"in {found['bytes_shared']:,} bytes where they share pages",
            f"in {found['bytes_alone']:,} bytes where each has a cache of its own",
            f"and write {same}",
        ]
    )


def read_options() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default, meaning in (
        ("prefix", 1500, "bytes of the prefix"),
        ("steps", 16, "bytes to write for each question"),
    ):
        parser.add_argument(
            f"--{name}", type=int, default=default, help=f"{meaning} (default {default})"
        )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    if min(options.prefix, options.steps) < 1:
        parser.error("--prefix and --steps must be at least 1")
    return options


if __name__ == "__main__":
    main()
