"""Measures decoding from caches: against SDPA, of 8 bits against bfloat16, and long appending."""

import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

import headwise as hw
from benchmarks.figures import Figure, figure, main
from headwise.cli.bench.measure import alternate

_MEMORY = 256 << 20  # bytes read to learn how fast memory is
_LAYERS = 6  # take turns, for a model's next layer is not in the processor's cache either
_STEPS = 100_000


def decode(seconds: float) -> Iterator[Figure]:
    """Compare a step over grouped heads through the cache with SDPA over the same tensors."""
    for dtype in (torch.float32, torch.bfloat16):
        for held in (4096, 3001):
            query, stored, cache = _filled(dtype, held, None)
            memory = torch.randn(_MEMORY // 4)
            times = alternate(
                {
                    "sdpa": _in_turn(lambda n: _sdpa(query, *stored[n])),  # noqa: B023
                    "cache": _in_turn(lambda n: cache.attend(query, layer=n)),  # noqa: B023
                    "memory": memory.sum,
                },
                seconds,
            )
            moved = stored[0][0].nbytes + stored[0][1].nbytes
            name = f"step over {held:,} keys {str(dtype)[6:]}"
            ratios = [a / b for a, b in zip(times["sdpa"], times["cache"], strict=True)]
            yield figure(name, "32 over 8 heads, times as fast as SDPA", ratios, "x")
            shares = [
                100 * (b / memory.nbytes * moved) / a
                for a, b in zip(times["cache"], times["memory"], strict=True)
            ]
            yield figure(name, "of memory speed", shares, "%")


def bytes8(seconds: float) -> Iterator[Figure]:
    """Compare a step from 8 bits with one from bfloat16, both through the cache."""
    for held in (4096, 3001, 16_384):
        query, _, wide = _filled(torch.bfloat16, held, None)
        _, _, narrow = _filled(torch.bfloat16, held, torch.int8)
        times = alternate(
            {
                "wide": _in_turn(lambda n: wide.attend(query, layer=n)),  # noqa: B023
                "narrow": _in_turn(lambda n: narrow.attend(query, layer=n)),  # noqa: B023
            },
            seconds,
        )
        ratios = [a / b for a, b in zip(times["wide"], times["narrow"], strict=True)]
        name = f"8 bits over {held:,} keys"
        yield figure(name, "32 over 8 heads, times as fast as bfloat16", ratios, "x")
        yield figure(name, "of its bytes", [100 * narrow.nbytes / wide.nbytes], "%")


def append(_: float) -> Iterator[Figure]:
    """Time single steps of appending, early ones and late ones, without attention."""
    kinds: dict[str, Callable[[], hw.KVCache]] = {
        "growing": hw.KVCache,
        "fixed": lambda: hw.KVCache(capacity=_STEPS),
        "window": lambda: hw.KVCache(window=256, keep_first=4),
        "8 bits": lambda: hw.KVCache(dtype=torch.int8),
        "pages": lambda: hw.KVCache(pool=hw.PagePool()),
    }
    key = torch.randn(1, 2, 1, 64)
    for name, kind in kinds.items():
        cache, times = kind(), []
        for _ in range(_STEPS):
            started = time.perf_counter()
            cache.append(key, key)
            times.append(1e6 * (time.perf_counter() - started))
        yield figure(f"append, {name}", "steps 1,000 to 10,000", times[1000:10_000], "µs")
        yield figure(f"append, {name}", "the last 10,000 of 100,000", times[-10_000:], "µs")


def _filled(
    dtype: torch.dtype, held: int, stored_as: torch.dtype | None
) -> tuple[Tensor, list[tuple[Tensor, Tensor]], hw.KVCache]:
    query = torch.randn(1, 32, 1, 128).to(dtype)
    stored = [(_drawn(held, dtype), _drawn(held, dtype)) for _ in range(_LAYERS)]
    cache = hw.KVCache(capacity=held, dtype=stored_as)
    for number, (key, value) in enumerate(stored):
        cache.append(key, value, layer=number)
    return query, stored, cache


def _drawn(held: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(1, 8, held, 128).to(dtype)


def _sdpa(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)


def _in_turn(run: Callable[[int], Tensor]) -> Callable[[], Tensor]:
    """Return a call that takes the next layer each time."""
    number = -1

    def call() -> Tensor:
        nonlocal number
        number = (number + 1) % _LAYERS
        return run(number)

    return call


if __name__ == "__main__":
    with torch.no_grad():
        main("benchmarks.caches", __doc__, {"decode": decode, "bytes8": bytes8, "append": append})
