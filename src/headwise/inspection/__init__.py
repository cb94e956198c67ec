"""What one can look at: pictures of patterns."""

from headwise.inspection import plots

__all__ = ["plots"]
