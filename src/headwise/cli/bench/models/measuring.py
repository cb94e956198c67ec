"""Checks a model in its forms, then times them in turn."""

import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import headwise.hf
from headwise.cli.bench.measure import rounds
from headwise.cli.bench.models.gate import check, worst
from headwise.cli.bench.models.peers import PEERS, ready
from headwise.cli.bench.models.subject import Subject
from headwise.cli.bench.models.work import Work
from headwise.cli.failures import Unable

BEFORE, AFTER = "before", "accelerate"


@dataclass
class Measured:
    """What came out of a model.

    Attributes:
        subject: The model.
        work: What it was asked to do.
        attention: The attention that it had.
        report: What accelerate did, as ``headwise.hf.report`` says it.
        errors: By form, the largest difference from the answer in float64.
        times: By form, the seconds of a call in every round.
        absent: By runtime, why it was not measured.
        parts_at: Where what both write begins to differ; ``None`` = nowhere, or nothing is written.
        complete: Whether all rounds were made.
    """

    subject: Subject
    work: Work
    attention: str
    report: str = ""
    errors: dict[str, float] = field(default_factory=dict)
    times: dict[str, list[float]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    parts_at: int | None = None
    complete: bool = False


Tell = Callable[[str, float], None]


def measure(subject: Subject, work: Work, seconds: float, tell: Tell) -> Measured:
    """Check the forms of a model, then time them for about ``seconds``.

    Ctrl-C while they are timed ends the measuring; what there is by then is returned.

    Args:
        subject: The model; it is left as it was.
        work: What it is asked to do.
        seconds: How long to measure in all.
        tell: Called with what is being done, and what share of all is done by then.

    Raises:
        Unable: The answer after accelerate is wrong; another runtime is left out for that.
    """
    before = subject.model
    found = Measured(subject, work, before.config._attn_implementation)
    with torch.no_grad():
        tell("Accelerating", 0.0)
        after = headwise.hf.accelerate(_sharing_weights(before))
        tell("Checking against float64", 0.1)
        exact = work.answer(deepcopy(before).double())
        plain = work.answer(before)
        found.errors[BEFORE] = worst(plain, exact)
        found.errors[AFTER] = check(AFTER, work.answer(after), plain, exact)
        found.report = str(headwise.hf.report(after))
        calls = {BEFORE: work.call(before, ours=False), AFTER: work.call(after, ours=True)}
        for peer in PEERS:
            tell(f"Bringing the model to {peer.name}", 0.2)
            run = _reason(work, plain) or ready(peer, before, work)
            if not isinstance(run, str):
                try:
                    found.errors[peer.name] = check(peer.name, run(), plain, exact, peer=True)
                    calls[peer.name] = run
                except Unable as wrong:
                    run = str(wrong)
            if isinstance(run, str):
                found.absent[peer.name] = run
        del exact, plain
        found.parts_at = _parting(calls)
        _take_turns(found, calls, seconds, tell)
    return found


def _take_turns(
    found: Measured, calls: dict[str, Callable[[], Any]], seconds: float, tell: Tell
) -> None:
    started = time.perf_counter()
    found.times = {name: [] for name in calls}
    try:
        for seen in rounds(calls, seconds):
            for name, taken in seen.items():
                found.times[name].append(taken)
            share = min((time.perf_counter() - started) / max(seconds, 0.1), 1.0)
            tell("Measuring", 0.3 + 0.7 * share)
        found.complete = True
    except KeyboardInterrupt:
        if not found.times[BEFORE]:
            raise


def _sharing_weights(model: Any) -> Any:
    """Copy a model without its weights, which both then have."""
    return deepcopy(model, {id(weight): weight for weight in model.parameters()})


def _reason(work: Work, plain: Tensor) -> str | None:
    """Say why no other runtime does this work."""
    if not work.is_forward:
        return "only forward passes are brought there"
    if plain.dtype != torch.float32:
        return "only float32 is brought there"
    return None


def _parting(calls: dict[str, Callable[[], Any]]) -> int | None:
    """Return where what two forms write begins to differ."""
    before, after = (calls[name]() for name in (BEFORE, AFTER))
    if not isinstance(before, Tensor) or torch.equal(before, after):
        return None
    return int((before != after).any(0).nonzero()[0])
