"""Measures what sparse patterns cost: live tiles, lowering, memory; and FlexAttention beside."""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial

import torch
from rich.table import Table
from torch.nn.attention.flex_attention import flex_attention

import headwise as hw
from headwise.cli.bench import Case, machine
from headwise.cli.bench.cases import square
from headwise.cli.bench.contenders import answers, contenders, inputs
from headwise.cli.bench.gate import check
from headwise.cli.bench.measure import alternate, ratio
from headwise.cli.output import show, steps, table
from headwise.ops.softmax.layouts import layout_of
from headwise.patterns import Causal, Documents, Pattern, Window, bigbird, longformer
from headwise.patterns.grid import grids
from headwise.patterns.lowering import kept
from headwise.patterns.tiles import TileLayout

PARTS = ("tiles", "lowering", "memory", "flex")
_LENGTH = 4096
_LONG = 65_536


@dataclass(frozen=True)
class Figure:
    """One figure: what was measured, its value with the quartiles, the unit, the setting."""

    name: str
    what: str
    median: float
    low: float
    high: float
    unit: str


def patterns(length: int) -> dict[str, Pattern]:
    """Return the patterns measured; packed documents have 517 tokens."""
    return {
        "window": Causal() & Window(255, 0),
        "longformer": longformer(512, 0),
        "bigbird": bigbird(64),
        "documents": Documents(torch.arange(length) // 517) & Causal(),
    }


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sparse", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=6.0, help="for each figure")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if unknown := [part for part in asked.parts if part not in PARTS]:
        parser.error(f"unknown: {', '.join(unknown)}; the parts are {', '.join(PARTS)}")
    torch.set_num_threads(asked.threads)
    measured = {"tiles": per_tile, "lowering": lowering, "memory": memory, "flex": against_flex}
    found: list[Figure] = []
    try:
        with steps() as progress:
            task = progress.add_task("Measuring", total=None)
            for part in asked.parts or PARTS:
                for figure in measured[part](asked.seconds):
                    found.append(figure)
                    progress.update(task, description=f"Measured {figure.name}")
    except KeyboardInterrupt:
        parser.exit(130, "stopped\n")
    if asked.json:
        json.dump(
            {"machine": machine(), "figures": [asdict(f) for f in found]}, sys.stdout, indent=1
        )
        sys.stdout.write("\n")
    else:
        show(_as_table(found))


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
        whole = statistics.median(_seconds(attend) for _ in range(5))
        title = f"lowering {name}"
        yield _figure(title, f"of {_LONG:,} tokens", [1e3 * seen for seen in times], "ms")
        yield _figure(title, "over its own forward, float32", [t / whole for t in times], "x")
        yield _figure(title, "memory of the layout", [size / 1e6], "MB")
    times, _ = _lowered(Causal() & Window(511, 0), 1 << 20)
    yield _figure("lowering window 511", f"of {1 << 20:,} tokens", [1e3 * t for t in times], "ms")


def memory(seconds: float) -> Iterator[Figure]:
    """Measure the peak memory of forward and backward, each length in a process of its own."""
    lengths = [_LENGTH << step for step in range(5)]
    for name in patterns(1):
        peaks = []
        for length in lengths:
            command = [sys.executable, "-m", "benchmarks.peak_memory", name, str(length)]
            ran = subprocess.run(command, capture_output=True, text=True, check=True)
            peaks.append(float(ran.stdout))
            yield _figure(
                f"memory {name}", f"forward and backward of {length:,} tokens", peaks[-1:], "MB"
            )
        numbers = torch.tensor([lengths, peaks], dtype=torch.float64)
        straight = float(torch.corrcoef(numbers)[0, 1] ** 2)
        yield _figure(f"memory {name}", "R² of a straight line through these", [straight], "")


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
    return [_seconds(anew) for _ in range(9)], layout.nbytes


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


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _figure(name: str, what: str, seen: list[float], unit: str) -> Figure:
    if len(seen) == 1:
        return Figure(name, what, seen[0], seen[0], seen[0], unit)
    low, median, high = statistics.quantiles(seen, n=4, method="inclusive")
    return Figure(name, what, median, low, high, unit)


def _as_table(found: list[Figure]) -> Table:
    place = machine()
    rows = table(f"{place['cpu']}, {place['instruction_set']}, {place['threads']} threads")
    for name in ("figure", "what", "median (quartiles)"):
        rows.add_column(name)
    for figure in found:
        spread = "" if figure.low == figure.high else f" ({figure.low:.3g}-{figure.high:.3g})"
        rows.add_row(figure.name, figure.what, f"{figure.median:.4g} {figure.unit}{spread}")
    return rows


if __name__ == "__main__":
    main()
