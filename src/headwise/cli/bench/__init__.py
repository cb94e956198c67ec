"""Measuring attend against torch's attention and against the formula written out."""

from headwise.cli.bench.cases import Case
from headwise.cli.bench.limits import Limits, limits
from headwise.cli.bench.report import Report, report
from headwise.cli.bench.selections import EVERYDAY, QUICK
from headwise.cli.bench.summary import as_json, as_table, machine

__all__ = [
    "EVERYDAY",
    "QUICK",
    "Case",
    "Limits",
    "Report",
    "as_json",
    "as_table",
    "limits",
    "machine",
    "report",
]
