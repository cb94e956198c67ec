"""What a call costs and which way it goes."""

from dataclasses import dataclass

import torch

from headwise import _native
from headwise.ops.softmax.call import Call
from headwise.patterns.lowering import lower
from headwise.patterns.tiles import KEY_TILE, QUERY_TILE


@dataclass(frozen=True)
class Plan:
    """How ``attend`` would run a call.

    Attributes:
        backend: The backend that would run; ``None`` where the named one refuses.
        isa: Instruction set of the native kernels; ``None`` on other backends.
        refusals: For every backend, all reasons why it will not take the call.
        live_fraction: Share of the query-key pairs that are allowed, 0 to 1.
        live_tiles: Tiles of 48 queries × 128 keys that hold an allowed pair, over all samples
            and query heads.
        flops: Multiplications and additions over the allowed pairs, two products each.
        bytes: Query, key, value and output, each counted once.
        complexity: How time grows with the lengths.
        threads: Threads that torch is set to.
    """

    backend: str | None
    isa: str | None
    refusals: dict[str, list[str]]
    live_fraction: float
    live_tiles: int
    flops: int
    bytes: int
    complexity: str
    threads: int

    def __str__(self) -> str:
        chosen = self.backend or "none: the backend asked for refuses"
        lines = [
            f"backend     {chosen}{f' ({self.isa})' if self.isa else ''}",
            f"threads     {self.threads}",
            f"live pairs  {self.live_fraction:.1%}, in {self.live_tiles:,} tiles",
            f"work        {self.flops / 1e9:.3g} GFLOP, {self.bytes / 1e6:.3g} MB",
            f"grows as    {self.complexity}",
        ]
        for name, reasons in self.refusals.items():
            lines += [f"not {name:<9}: {reason}" for reason in reasons]
        return "\n".join(lines)


def plan(call: Call, backend: str | None, refusals: dict[str, list[str]]) -> Plan:
    """Count what ``call`` costs on ``backend``."""
    batch, heads, q_len, head_dim = call.query.shape
    kv_len, value_dim = call.value.shape[2:]
    pairs = batch * heads * q_len * kv_len
    live, tiles = pairs, batch * heads * -(-q_len // QUERY_TILE) * -(-kv_len // KEY_TILE)
    layout = None if call.pattern is None else lower(call.pattern, call.places)
    if layout is not None:
        shape = (batch, heads)
        live = int(layout.live_pairs().expand(shape).sum())
        tiles = int(layout.live_tiles().expand(shape).sum())
    sparse = backend == "native" and layout is not None
    memory = "memory O(q_len + kv_len)" if backend == "native" else "memory up to O(q_len · kv_len)"
    work = "live tiles" if sparse else "q_len · kv_len"
    output = batch * heads * q_len * value_dim
    numbers = call.query.numel() + call.key.numel() + call.value.numel() + output
    return Plan(
        backend,
        _native.isa() if backend == "native" else None,
        refusals,
        live / pairs if pairs else 0.0,
        tiles,
        2 * live * (head_dim + value_dim),
        numbers * call.query.element_size(),
        f"time O({work} · head_dim), {memory}",
        torch.get_num_threads(),
    )
