"""Who may attend to whom: small frozen values over absolute positions."""

from headwise.patterns.base import Pattern
from headwise.patterns.causal import Causal, Full
from headwise.patterns.combine import Both, Either, Not
from headwise.patterns.dense import Dense, KeyMask
from headwise.patterns.documents import Documents
from headwise.patterns.presets import sliding_causal
from headwise.patterns.segments import Lengths, Prefix
from headwise.patterns.window import Window

__all__ = [
    "Both",
    "Causal",
    "Dense",
    "Documents",
    "Either",
    "Full",
    "KeyMask",
    "Lengths",
    "Not",
    "Pattern",
    "Prefix",
    "Window",
    "sliding_causal",
]
