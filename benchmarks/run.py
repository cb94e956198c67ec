"""Measures groups of cases, or single ones by name, each behind its check."""

import argparse
import json
import sys

import torch

from benchmarks.cases import GROUPS
from headwise.cli.bench import Case, Limits, Report, as_json, as_table, limits, report
from headwise.cli.failures import Unable
from headwise.cli.output import show, steps


def main() -> None:
    """Read the options, measure, print; ends with 1 where an answer was wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("what", nargs="*", help=f"groups ({', '.join(GROUPS)}) or names of cases")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=4.0, help="for each case")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    chosen = _chosen(parser, asked.what)
    if asked.list:
        sys.stdout.writelines(f"{case.name}\n" for case in chosen)
        return
    torch.set_num_threads(asked.threads)
    try:
        found, bounds, wrong = _measured(chosen, asked.seconds)
    except KeyboardInterrupt:
        parser.exit(130, "stopped\n")
    if asked.json:
        json.dump(as_json(found, bounds), sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        show(as_table(found, bounds))
    if wrong:
        parser.exit(1, "".join(f"{complaint}\n" for complaint in wrong))


def _chosen(parser: argparse.ArgumentParser, names: list[str]) -> list[Case]:
    """Return the cases of the groups and names asked for, each once; all where none is."""
    cases = {case.name: case for group in GROUPS.values() for case in group}
    unknown = [name for name in names if name not in GROUPS and name not in cases]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; the groups are {', '.join(GROUPS)}")
    wanted = [case for name in names or GROUPS for case in GROUPS.get(name) or (cases[name],)]
    return list({case.name: case for case in wanted}.values())


def _measured(cases: list[Case], seconds: float) -> tuple[list[Report], Limits | None, list[str]]:
    """Return the reports, the machine's limits, and what was wrong and so has no report."""
    found: list[Report] = []
    wrong: list[str] = []
    with steps() as progress:
        task = progress.add_task("Measuring the machine", total=len(cases))
        bounds = limits(case.dtype for case in cases)
        for case in cases:
            progress.update(task, description=f"Measuring {case.name}")
            try:
                found.append(report(case, seconds, bounds))
            except Unable as complaint:
                wrong.append(str(complaint))
            progress.advance(task)
    return found, bounds, wrong


if __name__ == "__main__":
    main()
