"""headwise inside transformers: attention, masks and cache for models that use their interface.

Importing this package does not import transformers; the calls do.
"""

from typing import TYPE_CHECKING

from headwise.hf.accelerate import accelerate, restore
from headwise.hf.big_bird import BigBirdBlocks, big_bird
from headwise.hf.convert import convert
from headwise.hf.drift import Drift, DriftRow, drift
from headwise.hf.lengthen import lengthen
from headwise.hf.register import register
from headwise.hf.report import Report, Row, report
from headwise.hf.requirement import require_transformers

if TYPE_CHECKING:
    from headwise.hf.cache import Cache

__all__ = [
    "BigBirdBlocks",
    "Cache",
    "Drift",
    "DriftRow",
    "Report",
    "Row",
    "accelerate",
    "big_bird",
    "convert",
    "drift",
    "lengthen",
    "register",
    "report",
    "restore",
]


def __getattr__(name: str) -> object:
    if name == "Cache":
        require_transformers()
        from headwise.hf.cache import Cache

        return Cache
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
