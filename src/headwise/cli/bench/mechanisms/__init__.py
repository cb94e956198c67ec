"""Cheap attentions against exact softmax attention: time, memory and error, length by length."""

from headwise.cli.bench.mechanisms.contenders import CONTENDERS, Contender
from headwise.cli.bench.mechanisms.crossover import Crossing, crossing, crossings
from headwise.cli.bench.mechanisms.exactness import error_of, precise
from headwise.cli.bench.mechanisms.gate import check
from headwise.cli.bench.mechanisms.minilm import PASSAGE, real_states
from headwise.cli.bench.mechanisms.outcome import Outcome, Timing, outcomes
from headwise.cli.bench.mechanisms.peak import peak_megabytes
from headwise.cli.bench.mechanisms.states import (
    MINILM_SHAPE,
    Inputs,
    Shape,
    States,
    random_states,
    wanting_gradients,
)

__all__ = [
    "CONTENDERS",
    "MINILM_SHAPE",
    "PASSAGE",
    "Contender",
    "Crossing",
    "Inputs",
    "Outcome",
    "Shape",
    "States",
    "Timing",
    "check",
    "crossing",
    "crossings",
    "error_of",
    "outcomes",
    "peak_megabytes",
    "precise",
    "random_states",
    "real_states",
    "wanting_gradients",
]
