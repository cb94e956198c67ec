"""Measures what sparse patterns cost: live tiles, lowering, memory; and FlexAttention beside."""

import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch.nn.attention.flex_attention import flex_attention

import headwise as hw
from benchmarks.figures import Figure, figure, main, seconds_of
from headwise.cli.bench import Case
from headwise.cli.bench.cases import square
from headwise.cli.bench.contenders import answers, contenders, inputs
from headwise.cli.bench.gate import check
from headwise.cli.bench.measure import alternate, ratio
from headwise.ops.softmax.layouts import layout_of
from headwise.patterns import Causal, Documents, Pattern, Window, bigbird, longformer
from headwise.patterns.grid import grids
from headwise.patterns.lowering import kept
from headwise.patterns.tiles import TileLayout

_LENGTH = 4096
_LONG = 65_536


def patterns(length: int) -> dict[str, Pattern]:
    """Return the patterns measured; packed documents have 517 tokens."""
    return {
        "window": Causal() & Window(255, 0),
        "longformer": longformer(512, 0),
        "bigbird": bigbird(64),
        "documents": Documents(torch.arange(length) // 517) & Causal(),
    }


def per_tile(seconds: float) -> Iterator[Figure]:
    """Compare the time of a live tile with the dense kernel's, where all tiles are full."""
    for dtype in ("float32", "bfloat16"):
        for backward in (False, True):
            dense = square("dense", _LENGTH, 64, None, dtype, backward=backward)
            for name, pattern in patterns(_LENGTH).items():
                sparse = square(name, _LENGTH, 64, pattern, dtype, backward=backward)
                calls = {case.name: _checked(case) for case in (dense, sparse)}
                times = alternate(calls, seconds)
                share = _tiles(sparse) / _tiles(dense)
                found = ratio([seen / share for seen in times[name]], times["dense"])
                yield Figure(
                    f"tile {name} {dtype} {sparse.work}",
                    f"time of a live tile over the dense kernel's, {_LENGTH:,} tokens",
                    *(found.median, found.low, found.high, "x"),
                )


def lowering(seconds: float) -> Iterator[Figure]:
    """Time the lowering of long inputs, and compare it with the forward pass of 12 heads."""
    for name, pattern in {**patterns(_LONG), "window 511": Causal() & Window(511, 0)}.items():
        times, size = _lowered(pattern, _LONG)
        query, key, value = torch.randn(3, 1, 12, _LONG, 64)
        attend = partial(hw.attend, query, key, value, pattern)
        attend()
        whole = statistics.median(seconds_of(attend) for _ in range(5))
        title = f"lowering {name}"
        yield figure(title, f"of {_LONG:,} tokens", [1e3 * seen for seen in times], "ms")
        yield figure(title, "over its own forward, float32", [t / whole for t in times], "x")
        yield figure(title, "memory of the layout", [size / 1e6], "MB")
    times, _ = _lowered(Causal() & Window(511, 0), 1 << 20)
    yield figure("lowering window 511", f"of {1 << 20:,} tokens", [1e3 * t for t in times], "ms")


def memory(seconds: float) -> Iterator[Figure]:
    """Measure the peak memory of forward and backward, each length in a process of its own."""
    lengths = [_LENGTH << step for step in range(5)]
    for name in patterns(1):
        peaks = []
        for length in lengths:
            command = [sys.executable, "-m", "benchmarks.peak_memory", name, str(length)]
            ran = subprocess.run(command, capture_output=True, text=True, check=True)
            peaks.append(float(ran.stdout))
            yield figure(
                f"memory {name}", f"forward and backward of {length:,} tokens", peaks[-1:], "MB"
            )
        numbers = torch.tensor([lengths, peaks], dtype=torch.float64)
        straight = float(torch.corrcoef(numbers)[0, 1] ** 2)
        yield figure(f"memory {name}", "R² of a straight line through these", [straight], "")


def against_flex(seconds: float) -> Iterator[Figure]:
    """Compare a window with compiled FlexAttention, whose mask is made before the clock starts."""
    case = square("window", _LENGTH, 64, Causal() & Window(255, 0))
    given = inputs(case)
    assert case.pattern is not None
    mask = case.pattern.block_mask(_LENGTH, _LENGTH)
    compiled = torch.compile(flex_attention)

    def through_flex() -> tuple[torch.Tensor, ...]:
        return answers(lambda q, k, v: compiled(q, k, v, block_mask=mask), given)

    def lowered_anew() -> tuple[torch.Tensor, ...]:
        kept.clear()
        return ours()

    with torch.no_grad():
        ours, sdpa = (contenders(case, given)[name] for name in ("headwise", "sdpa"))
        check(case.name, given, {"headwise": ours(), "flex": through_flex(), "sdpa": sdpa()})
        for name, peer in (("FlexAttention, compiled", through_flex), ("SDPA with a mask", sdpa)):
            times = alternate({"headwise": lowered_anew, "peer": peer}, seconds)
            found = ratio(times["peer"], times["headwise"])
            yield Figure(
                f"window of 256, over {name}",
                f"times as fast, {_LENGTH:,} tokens, our lowering included",
                *(found.median, found.low, found.high, "x"),
            )


def _lowered(pattern: Pattern, length: int) -> tuple[list[float], int]:
    """Return the seconds of lowering anew, several times, and the bytes of the layout."""
    places = grids(length, length, None, 0)

    def anew() -> TileLayout | None:
        kept.clear()
        return layout_of(pattern, places)

    layout = anew()
    assert layout is not None
    return [seconds_of(anew) for _ in range(9)], layout.nbytes


def _checked(case: Case) -> Callable[[], tuple[torch.Tensor, ...]]:
    """Return the call of a case whose answers were found right."""
    given = inputs(case)
    call = contenders(case, given)["headwise"]
    check(case.name, given, {"headwise": call()})
    return call


def _tiles(case: Case) -> int:
    sizes = (case.batch, case.q_heads, case.q_len, case.head_dim)
    tensor = torch.empty(sizes)
    return hw.explain(tensor, tensor, tensor, case.pattern).live_tiles


if __name__ == "__main__":
    main(
        "benchmarks.sparse",
        __doc__,
        {"tiles": per_tile, "lowering": lowering, "memory": memory, "flex": against_flex},
    )
