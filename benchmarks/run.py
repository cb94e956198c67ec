"""Measures groups of cases, or single ones by name, each behind its check."""

import argparse
import json
import sys
from dataclasses import asdict

import torch

from benchmarks.cases import GROUPS
from headwise.cli.bench import as_table, machine, report
from headwise.cli.failures import Unable
from headwise.cli.output import show


def main() -> None:
    """Read the options, measure, print; 1 where an answer is wrong."""
    cases = {case.name: case for group in GROUPS.values() for case in group}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", default=list(GROUPS), help="groups or names of cases")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=4.0, help="for each case")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    unknown = [name for name in asked.what if name not in GROUPS and name not in cases]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; choose from {', '.join([*GROUPS, *cases])}")
    torch.set_num_threads(asked.threads)
    chosen = [case for name in asked.what for case in GROUPS.get(name) or (cases[name],)]
    try:
        found = [report(case, asked.seconds) for case in chosen]
    except Unable as wrong:
        parser.exit(1, f"{wrong}\n")
    if asked.json:
        json.dump({"machine": machine(), "cases": [asdict(one) for one in found]}, sys.stdout)
    else:
        show(as_table(found))


if __name__ == "__main__":
    main()
