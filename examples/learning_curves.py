"""Trainings that take turns, and what is seen of each: loss, time, memory."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import median

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR
from transformers import PreTrainedModel

from headwise.cli.bench.mechanisms.peak import peak_megabytes

# What a model reads, and what it is to tell there.
Sample = tuple[Tensor, Tensor]


@dataclass
class Curve:
    """Losses of one training on held-out text, in bits a byte, and what each had cost.

    Attributes:
        steps: Training steps before each look.
        tokens: Tokens read before it.
        bits: Bits a byte of the held-out text takes.
        times: Seconds of every step; looking is not counted.
    """

    steps: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    bits: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    @property
    def seconds(self) -> list[float]:
        """Seconds of training before each look: the median step, as often as there were steps.

        All steps do the same work, so what took longer was other work of the machine.
        """
        step = median(self.times) if self.times else 0.0
        return [count * step for count in self.steps]

    def at(self, seconds: float) -> float | None:
        """Return the bits after some seconds, between the looks in a straight line."""
        found = self.seconds
        for place in range(1, len(found)):
            before, after = found[place - 1 : place + 1]
            if before <= seconds <= after:
                share = (seconds - before) / (after - before)
                return self.bits[place - 1] + share * (self.bits[place] - self.bits[place - 1])
        return None


class Training:
    """One of the trainings: a model, its optimizer, and what was measured.

    Args:
        model: What learns.
        rate: Largest learning rate; it rises for a tenth of the steps and falls from there on.
        steps: Training steps there will be.
        sample: A batch, for what a step takes in memory; nothing is learned from it.
    """

    def __init__(self, model: PreTrainedModel, rate: float, steps: int, sample: Sample) -> None:
        self.model = model.train()
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
        self.schedule = OneCycleLR(self.optimizer, rate, total_steps=steps + 1, pct_start=0.1)
        self.megabytes = peak_megabytes(lambda: self._gradients(sample))
        self.optimizer.zero_grad()
        self.curve = Curve()
        self.steps = self.tokens = 0

    def step(self, sample: Sample) -> None:
        """Learn from one batch."""
        started = time.perf_counter()
        self._gradients(sample)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        self.curve.times.append(time.perf_counter() - started)
        self.steps += 1
        self.tokens += sample[0].numel()

    @torch.no_grad()
    def look(self, samples: Iterable[Sample], in_bits: Callable[[float], float]) -> None:
        """Write down the loss on held-out samples."""
        self.model.eval()
        total, told = 0.0, 0
        for read, wanted in samples:
            count = int((wanted != -100).sum())
            total += self._loss(read, wanted).item() * count
            told += count
        self.model.train()
        curve = self.curve
        curve.steps.append(self.steps)
        curve.tokens.append(self.tokens)
        curve.bits.append(in_bits(total / told))

    def _gradients(self, sample: Sample) -> None:
        torch.autograd.backward(self._loss(*sample))

    def _loss(self, read: Tensor, wanted: Tensor) -> Tensor:
        loss: Tensor = self.model(input_ids=read, labels=wanted).loss
        return loss
