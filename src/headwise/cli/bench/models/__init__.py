"""A model of transformers before and after accelerate, and in other runtimes."""

from headwise.cli.bench.models.compare import compare
from headwise.cli.bench.models.options import Options

__all__ = ["Options", "compare"]
