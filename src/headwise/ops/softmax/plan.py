"""What a call costs and which way it goes."""

from dataclasses import dataclass
from functools import cached_property
from math import floor, log10
from typing import NamedTuple

import torch

from headwise import _limits, _native
from headwise.ops.softmax.call import Call
from headwise.ops.softmax.growth import keys_seen
from headwise.ops.softmax.in_parts import Part, split
from headwise.ops.softmax.layouts import layout_of
from headwise.patterns.tiles import KEY_TILE, QUERY_TILE

# Products over the allowed pairs: two forward, five backward.
_BACKWARD = 5 / 2
# As in benchmarks/record/0.2.0.json. There the kernels reach 0.6 to 0.8 of the machine's arithmetic
# on long inputs, and 0.5 to 0.6 of its memory in decoding; the smallest call takes 20 µs.
_OF_ARITHMETIC, _OF_MEMORY, _CALLING = 0.7, 0.55, 20e-6
_PREFIXES = {-3: "n", -2: "µ", -1: "m", 0: "", 1: "k", 2: "M", 3: "G", 4: "T"}


@dataclass(frozen=True)
class Plan:
    """How ``attend`` would run a call.

    Attributes:
        backend: The backend that would run; ``None`` where the named one refuses, or where strict
            mode refuses the one that would.
        isa: Instruction set of the native kernels; ``None`` on other backends.
        slow: The backend that ``"auto"`` would take where that is not the fast one of the device;
            ``None`` otherwise.
        strict: Whether slow paths are errors, see ``headwise.strict``.
        refusals: For every backend, all reasons why it will not take the call.
        dtype: Element type of the call.
        live_fraction: Share of the query-key pairs that are allowed, 0 to 1.
        live_tiles: Tiles of 48 queries × 128 keys that hold an allowed pair, over all samples
            and query heads.
        computed_fraction: Share of the query-key pairs that the native kernels compute, 0 to 1: of
            each live tile all queries, with the keys from the first to the last that one of them
            sees. Their time follows this, not ``live_fraction``.
        flops: Multiplications and additions over the allowed pairs, two products each, forward.
        bytes: Query, output, key and value, each counted once; of key and value, on the native
            backend, those in live tiles.
        backward_flops: The same for the gradients of query, key and value, five products; 0 where
            no gradient is wanted.
        backward_bytes: What the backward reads and writes, each tensor counted once; 0 where no
            gradient is wanted.
        steps: The parts that the native backend takes the call apart into: for each the step of
            its residue classes, 1 where it has none; ``(1,)`` = the call stays whole.
        complexity: How time and memory grow with the lengths.
        threads: Threads that torch is set to.
    """

    backend: str | None
    isa: str | None
    slow: str | None
    strict: bool
    refusals: dict[str, list[str]]
    dtype: str
    live_fraction: float
    live_tiles: int
    computed_fraction: float
    flops: int
    bytes: int
    backward_flops: int
    backward_bytes: int
    steps: tuple[int, ...]
    complexity: str
    threads: int

    @cached_property
    def expected_seconds(self) -> float | None:
        """About how long the native kernels take, forward and, where wanted, backward; seconds.

        Each takes 20 µs for the calling, and the longer of two times: computing
        ``computed_fraction`` at 70 % of the machine's multiply-adds, and moving the bytes at 55 %
        of its memory's speed. That is what the kernels reached when they were last recorded, on
        long inputs and an idle machine. The machine is measured the first time that this or
        ``str(plan)`` is asked for in a process, in about a third of a second, and again only for
        other threads, instruction sets or element types. ``None`` on other backends, of which
        that share is not known.
        """
        limits = _limits.rates(self.dtype) if self.backend == "native" else None
        if limits is None:
            return None
        whole = self.computed_fraction / self.live_fraction if self.live_fraction else 1.0

        def seconds(flops: int, moved: int) -> float:
            computing = flops * whole / (_OF_ARITHMETIC * limits.arithmetic)
            return _CALLING + max(computing, moved / (_OF_MEMORY * limits.memory))

        forward = seconds(self.flops, self.bytes)
        if not self.backward_bytes:
            return forward
        return forward + seconds(self.backward_flops, self.backward_bytes)

    def rows(self) -> list[tuple[str, str]]:
        """Return what there is to say of the plan: a name and a text each."""
        found = [
            ("backend", self._chosen),
            ("strict", "on" if self.strict else "off"),
            ("threads", str(self.threads)),
            ("live pairs", f"{_percent(self.live_fraction)} of all"),
            (
                "computed",
                f"{_percent(self.computed_fraction)} of all, in {self.live_tiles:,} tiles of "
                f"{QUERY_TILE} × {KEY_TILE}",
            ),
            ("forward", _amounts(self.flops, self.bytes)),
        ]
        if self.steps != (1,):
            found.insert(-1, ("parts", f"residue classes of step {_listed(self.steps)}, joined"))
        if self.backward_bytes:
            found.append(("backward", _amounts(self.backward_flops, self.backward_bytes)))
        found += [("takes", self._expected), ("grows as", self.complexity)]
        for name, reasons in self.refusals.items():
            found += [(f"not {name}", reason) for reason in reasons]
        return found

    def __str__(self) -> str:
        rows = self.rows()
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)

    @property
    def _chosen(self) -> str:
        if self.backend is None:
            return (
                "none: the backend asked for refuses"
                if self.slow is None
                else f"none: strict mode refuses the slow path, {self.slow}"
            )
        note = f" ({self.isa})" if self.isa else ", a slow path" if self.slow else ""
        return self.backend + note

    @property
    def _expected(self) -> str:
        seconds = self.expected_seconds
        if seconds is None:
            return "not known: limits are measured for the native kernels only"
        return f"about {scaled(seconds, 's')} on this machine, by its measured limits"


def scaled(number: float | int, unit: str) -> str:
    """Write a number in three digits with a prefix of its unit, such as 1.23 ms."""
    if number == 0:
        return f"0 {unit}"
    step = max(-3, min(0 if unit == "s" else 4, floor(log10(number * 1.0005) / 3)))
    shown = number / 1000.0**step
    digits = f"{shown:,.0f}" if shown >= 99.95 else f"{shown:#.3g}"
    return f"{digits} {_PREFIXES[step]}{unit}"


def _amounts(flops: int, moved: int) -> str:
    return f"{scaled(flops, 'FLOP')}, {scaled(moved, 'B')}"


def _listed(numbers: tuple[int, ...]) -> str:
    return " and ".join(str(number) for number in numbers)


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


def plan(
    call: Call, backend: str | None, slow: str | None, strict: bool, refusals: dict[str, list[str]]
) -> Plan:
    """Count what ``call`` costs on ``backend``."""
    batch, heads, q_len, head_dim = call.query.shape
    kv_len, value_dim = call.value.shape[2:]
    pairs = batch * heads * q_len * kv_len
    parts = split(call) if backend == "native" else [Part(call.pattern, call.places, 1)]
    counts = [_counted(part, batch, heads) for part in parts]
    live, tiles, computed, seen = (sum(each) for each in zip(*counts, strict=True))
    flops = 2 * live * (head_dim + value_dim)
    rows = call.query.numel() + batch * heads * q_len * value_dim
    read = 1.0
    if backend == "native" and pairs:
        read = min(seen / (batch * heads * kv_len), 1.0)
    columns = round(read * (call.key.numel() + call.value.numel()))
    wide = call.query.element_size()
    return Plan(
        backend=backend,
        isa=_native.isa() if backend == "native" else None,
        slow=slow,
        strict=strict,
        refusals=refusals,
        dtype=str(call.query.dtype).removeprefix("torch."),
        live_fraction=live / pairs if pairs else 0.0,
        live_tiles=tiles,
        computed_fraction=computed / pairs if pairs else 0.0,
        flops=flops,
        bytes=(rows + columns) * wide,
        backward_flops=round(flops * _BACKWARD) if call.wants_gradient else 0,
        backward_bytes=2 * (rows + columns) * wide if call.wants_gradient else 0,
        steps=tuple(part.step for part in parts),
        complexity=_complexity(call, backend, live < pairs),
        threads=torch.get_num_threads(),
    )


class _Counts(NamedTuple):
    """Allowed pairs, live tiles, computed pairs, and keys that are read, over samples and heads."""

    live: int
    tiles: int
    computed: int
    seen: int


def _counted(part: Part, batch: int, heads: int) -> _Counts:
    samples = batch * part.step
    layout = None if part.pattern is None else layout_of(part.pattern, part.places)
    if layout is None:
        q_len, kv_len, *_ = part.places[0]
        each = (q_len * kv_len, -(-q_len // QUERY_TILE) * -(-kv_len // KEY_TILE), q_len * kv_len)
        return _Counts(*(samples * heads * amount for amount in (*each, kv_len)))
    amounts = (
        *(layout.live_pairs(), layout.live_tiles()),
        *(layout.computed_pairs(), layout.seen_keys()),
    )
    return _Counts(*(int(amount.expand(samples, heads).sum()) for amount in amounts))


def _complexity(call: Call, backend: str | None, sparse: bool) -> str:
    if backend != "native":
        return "time O(q_len · kv_len · head_dim), memory up to O(q_len · kv_len)"
    seen = keys_seen(call.pattern) if sparse and call.pattern is not None else "kv_len"
    return f"time O(q_len · {seen} · head_dim), memory O(q_len + kv_len)"
