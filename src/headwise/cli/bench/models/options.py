"""The options of ``headwise bench --model``."""

from dataclasses import dataclass
from enum import StrEnum

TOKENS, BATCH = 128, 1


class Dtype(StrEnum):
    """The element types that a model is measured in."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


@dataclass(frozen=True)
class Options:
    """What was given; ``None`` = not given.

    Attributes:
        tokens: Tokens of a sample.
        batch: Samples.
        dtype: Element type.
        generate: Whether writing is measured instead of a forward pass.
        quick: Whether a short round will do.
    """

    tokens: int | None = None
    batch: int | None = None
    dtype: Dtype | None = None
    generate: bool = False
    quick: bool = False

    @property
    def only_here(self) -> list[str]:
        """The options that were given and mean nothing without ``--model``."""
        given = {
            "--tokens": self.tokens,
            "--batch": self.batch,
            "--dtype": self.dtype,
            "--generate": self.generate or None,
        }
        return [name for name, value in given.items() if value is not None]
