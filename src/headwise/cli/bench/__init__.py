"""Measuring attend against torch's attention and against the formula written out."""

from headwise.cli.bench.cases import EVERYDAY, QUICK, Case
from headwise.cli.bench.report import Report, as_table, machine, report

__all__ = ["EVERYDAY", "QUICK", "Case", "Report", "as_table", "machine", "report"]
