"""A task that needs what was read long ago: notes first, then questions about some of them."""

from dataclasses import dataclass

import torch
from torch import Tensor

# Bytes: values from 0, noise from 32, questions from 64, notes (a topic and its value) from 128.
NOISE, QUESTION, NOTE = 32, 64, 128
_NOTED = 0.75  # share of a note's block that says what it notes; the rest is noise


@dataclass(frozen=True)
class Recall:
    """Blocks of notes and of noise in any order, then stretches of questions.

    A block of notes says which value a topic has. A stretch of questions names one topic over and
    over; at each of its bytes the model shall answer with the topic's value, which nothing near
    tells. Values and order are drawn anew for every sample.

    Args:
        block: Bytes in a block.
        topics: Topics, a block of notes each.
        noise: Further blocks among them that hold noise.
        values: Values that a topic may have.
        asked: Stretches of questions, of different topics.
        stretch: Blocks in a stretch.
    """

    block: int = 16
    topics: int = 4
    noise: int = 8
    values: int = 4
    asked: int = 2
    stretch: int = 4

    @property
    def told(self) -> int:
        """Bytes before the first question."""
        return (self.topics + self.noise) * self.block

    @property
    def length(self) -> int:
        """Bytes in a sample."""
        return self.told + self.asked * self.stretch * self.block

    def batch(self, samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw samples: bytes (samples, length), and answers (samples, questions)."""
        blocks = self.topics + self.noise
        value = torch.randint(self.values, (samples, self.topics), generator=generator)
        order = torch.rand(samples, blocks, generator=generator).argsort(1).unsqueeze(2)
        topic = order.clamp(max=self.topics - 1)
        note = NOTE + topic * self.values + value.unsqueeze(2).gather(1, topic)
        shape = (samples, blocks, self.block)
        noted = (torch.rand(shape, generator=generator) < _NOTED) & (order < self.topics)
        noise = torch.randint(NOISE, QUESTION, shape, generator=generator)
        told = torch.where(noted, note, noise).flatten(1)
        asked = torch.rand(samples, self.topics, generator=generator).argsort(1)[:, : self.asked]
        questions = asked.repeat_interleave(self.stretch * self.block, 1)
        return torch.cat([told, QUESTION + questions], 1), value.gather(1, questions)
