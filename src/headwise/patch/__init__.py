"""Torch's own attention call, computed by ``headwise.attend``."""

from headwise.patch.explained import Route, explain
from headwise.patch.switch import sdpa

__all__ = ["Route", "explain", "sdpa"]
