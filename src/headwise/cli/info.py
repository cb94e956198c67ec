"""``headwise info``: what is installed here and what it can do."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from headwise.info import info as gather


def info(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Show versions, instruction sets, threads, and which backends are usable, and why not."""
    found = gather()
    print(json.dumps(asdict(found), indent=2) if as_json else found)
