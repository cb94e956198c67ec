"""Read a long stream through a window, in memory that stays what it is.

The model may attend to everything; the cache keeps the last tokens alone, and the first few for
good where that is asked. What comes out is what one pass over the whole text gives whose pattern is
that window. The text is Python's own help pages.

    python examples/long_stream.py
    python examples/long_stream.py --keep-first 4 --length 20000
"""

# ruff: noqa: T201

import argparse
import json
from pydoc_data.topics import topics
from typing import Any

import torch
from cached_decoder import CachedDecoder
from torch import Tensor

import headwise as hw


def windowed(window: int, keep_first: int) -> hw.patterns.Pattern:
    """Return who sees whom when a cache keeps so many last and so many first tokens."""
    last = hw.Window(window - 1, None)
    return hw.Causal() & (last | hw.Prefix(keep_first) if keep_first else last)


def read(
    model: CachedDecoder, ids: Tensor, piece: int, cache: hw.KVCache
) -> tuple[Tensor, dict[int, int]]:
    """Read ``ids`` piece by piece; return all scores, and the cache's bytes after some tokens."""
    scores: list[Tensor] = []
    held: dict[int, int] = {}
    for start in range(0, ids.shape[1], piece):
        scores.append(model(ids[:, start : start + piece], cache))
        done = cache.length()
        if done & (done - 1) == 0 or done == ids.shape[1]:
            held[done] = cache.nbytes
    return torch.cat(scores, 1), held


def main() -> None:
    """Read the text through the window and in one pass; print bytes and differences."""
    options = read_options()
    text = "\n".join(topics.values()).encode()[: options.length]
    ids = torch.tensor([list(text)])
    pattern = windowed(options.window, options.keep_first)
    cache = hw.KVCache(window=options.window, keep_first=options.keep_first, rollback=0)
    with torch.inference_mode():
        scores, held = read(CachedDecoder().eval(), ids, options.piece, cache)
        whole = CachedDecoder(pattern=pattern).eval()(ids)
        growing = hw.KVCache()
        CachedDecoder().eval()(ids, growing)
    found: dict[str, Any] = {
        "bytes_after_tokens": held,
        "bytes_of_a_growing_cache": growing.nbytes,
        "largest_difference": (scores - whole).abs().max().item(),
        "largest_score": whole.abs().max().item(),
    }
    print(json.dumps(found) if options.json else summary(found))


def summary(found: dict[str, Any]) -> str:
    """Return what was found as lines for people."""
    lines = [f"{'tokens':>10}{'bytes':>12}"]
    lines += [f"{tokens:>10,}{held:>12,}" for tokens, held in found["bytes_after_tokens"].items()]
    return "\n".join(
        [
            *lines,
            f"a cache that grows would hold {found['bytes_of_a_growing_cache']:,} bytes",
            f"scores differ from one pass by at most {found['largest_difference']:.1e}, "
            f"the largest is {found['largest_score']:.1f}",
        ]
    )


def read_options() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default, meaning in (
        ("length", 4096, "bytes to read, of the text's 700,000"),
        ("piece", 16, "bytes in a call"),
        ("window", 64, "last bytes that are seen"),
        ("keep-first", 0, "first bytes that are never dropped"),
    ):
        parser.add_argument(
            f"--{name}", type=int, default=default, help=f"{meaning} (default {default})"
        )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    if min(options.length, options.piece, options.window) < 1 or options.keep_first < 0:
        parser.error("--length, --piece and --window start at 1, --keep-first at 0")
    return options


if __name__ == "__main__":
    main()
