"""Checks and times a case, and says what came out."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

import headwise as hw
from headwise.cli.bench.cases import Case
from headwise.cli.bench.contenders import Answers, Inputs, contenders, inputs, taking_turns
from headwise.cli.bench.gate import check
from headwise.cli.bench.limits import Limits
from headwise.cli.bench.measure import Ratio, alternate, ratio

# Two products over the allowed pairs forward, five backward.
_FLOPS_OF_TRAINING = 3.5


@dataclass(frozen=True)
class Report:
    """The figures of one case.

    Attributes:
        name: Name of the case.
        sizes: Samples x heads x tokens x head width.
        pattern: Who may attend to whom.
        dtype: Element type.
        work: ``forward``, or ``fwd+bwd`` with the gradients of query, key and value.
        backend: What headwise ran.
        isa: Instruction set it used; ``None`` outside the native kernels.
        milliseconds: Median time of a call, by contender; without the formula where its scores
            would not fit in memory.
        errors: Largest difference from the float64 answer, by contender, for the output and the
            gradients.
        over_sdpa: How many times as fast as torch's own attention.
        over_formula: How many times as fast as the formula written out; ``None`` without it.
        rate: GFLOP/s over the allowed pairs, or GB/s of keys and values in decoding.
        unit: Of ``rate``.
        share: ``rate`` over the machine's own limit; ``None`` where that is not known.
        first_milliseconds: Time of headwise's first call, which lowers the pattern.
        rounds: How often headwise and sdpa took turns.
    """

    name: str
    sizes: str
    pattern: str
    dtype: str
    work: str
    backend: str
    isa: str | None
    milliseconds: dict[str, float]
    errors: dict[str, dict[str, float]]
    over_sdpa: Ratio
    over_formula: Ratio | None
    rate: float
    unit: str
    share: float | None
    first_milliseconds: float
    rounds: int


# Where reading is all the work, inputs as of so many layers take turns: the next layer of a model
# does not find its keys and values in the processor's cache either.
_LAYERS = 4


def report(case: Case, seconds: float = 2.0, limits: Limits | None = None) -> Report:
    """Check a case's answers, then time its contenders for about ``seconds``.

    Raises:
        Unable: A contender's answer is wrong.
    """
    given = inputs(case)
    calls = _calls(case, given)
    with torch.set_grad_enabled(case.backward):
        plan = hw.explain(given.query, given.key, given.value, case.pattern)
        started = time.perf_counter()
        found = {"headwise": calls["headwise"]()}
        first_seconds = time.perf_counter() - started
        found |= {name: call() for name, call in calls.items() if name not in found}
        errors = check(case.name, given, found)
        found.clear()
        times = _times(calls, seconds)
    medians = {"headwise": statistics.median(times["sdpa"]["headwise"])}
    medians |= {peer: statistics.median(turns[peer]) for peer, turns in times.items()}
    over = {peer: ratio(turns[peer], turns["headwise"]) for peer, turns in times.items()}
    work = plan.flops * (_FLOPS_OF_TRAINING if case.backward else 1.0)
    if case.reads:
        work = (given.key.numel() + given.value.numel()) * given.key.element_size()
    rate = work / medians["headwise"] / 1e9
    return Report(
        name=case.name,
        sizes=case.sizes,
        pattern=repr(case.pattern) if case.pattern is not None else "Full()",
        dtype=case.dtype,
        work=case.work,
        backend=str(plan.backend),
        isa=plan.isa,
        milliseconds={name: median * 1e3 for name, median in medians.items()},
        errors=errors,
        over_sdpa=over["sdpa"],
        over_formula=over.get("formula"),
        rate=rate,
        unit="GB/s" if case.reads else "GFLOP/s",
        share=None if limits is None else limits.share(case, rate),
        first_milliseconds=first_seconds * 1e3,
        rounds=len(times["sdpa"]["headwise"]),
    )


def _calls(case: Case, given: Inputs) -> dict[str, Callable[[], Answers]]:
    calls = contenders(case, given)
    if not case.reads:
        return calls
    others = [contenders(case, inputs(case, seed)) for seed in range(1, _LAYERS)]
    return {name: taking_turns([call, *(o[name] for o in others)]) for name, call in calls.items()}


def _times(
    calls: dict[str, Callable[[], Answers]], seconds: float
) -> dict[str, dict[str, list[float]]]:
    """Time headwise against each peer apart.

    In pairs: the formula writes so much that whatever follows it waits for memory.
    """
    peers = [name for name in calls if name != "headwise"]
    return {
        peer: alternate({name: calls[name] for name in ("headwise", peer)}, seconds / len(peers))
        for peer in peers
    }
