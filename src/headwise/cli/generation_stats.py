"""The figures of a text that a model wrote."""

from collections import Counter
from typing import Any

import torch

from headwise import _native
from headwise.cli.cache_kinds import CacheKind
from headwise.cli.continuation import Continuation


def figures(name: str, written: Continuation, kind: CacheKind | None) -> dict[str, Any]:
    """Return how long it took, what the cache held, and what computed it.

    Args:
        name: What the model is called.
        written: What it wrote.
        kind: The kind of cache; ``None`` = none.
    """
    new = len(written.tokens)
    prefill, decode = written.prefill_seconds, written.decode_seconds
    return {
        "model": name,
        "prompt_tokens": written.prompt_tokens,
        "new_tokens": new,
        "prefill_seconds": round(prefill, 4),
        "prefill_tokens_per_second": round(written.prompt_tokens / prefill, 1),
        "decode_seconds": round(decode, 4),
        "decode_tokens_per_second": round((new - 1) / decode, 1) if new > 1 else None,
        "cache": None if kind is None else str(kind),
        "cache_bytes": written.cache_bytes,
        "cache_dropped_tokens": None if kind is None else kind.dropped(written.cache_tokens or 0),
        "prefill_backend": _worded(written.prefill_backends),
        "decode_backend": _worded(written.decode_backends),
        "instruction_set": _native.isa(),
        "threads": torch.get_num_threads(),
    }


def readable(value: Any) -> str:
    """Return a figure as people read it."""
    if value is None:
        return "none"
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def _worded(ran: Counter[str]) -> str | None:
    """Name the backends that took the attention calls, the busiest first."""
    if len(ran) < 2:
        return next(iter(ran), None)
    return ", ".join(f"{name} ({calls} calls)" for name, calls in ran.most_common())
