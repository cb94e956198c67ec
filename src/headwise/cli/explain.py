"""``headwise explain``: what a call would cost and which way it would go, from its sizes."""

import json
from dataclasses import asdict
from enum import StrEnum
from itertools import groupby
from operator import itemgetter
from typing import Annotated, Any

import torch
import typer

from headwise.cli import variants
from headwise.cli.drawing import drawn
from headwise.cli.failures import WrongInput, check_text, one_line
from headwise.cli.output import show, table
from headwise.errors import PatternError, ShapeError
from headwise.ops import explain_sizes
from headwise.patterns import Full, Pattern, parse

_LONGEST = 1 << 20
_MOST = 1 << 20
_HEADS, _WIDTH = 12, 64
# What a message begins with that comes from the functions behind this command.
_CALLERS = ("explain", "patterns.parse")


class _Dtype(StrEnum):
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT64 = "float64"


class _Language(StrEnum):
    ENGLISH = "en"
    CHINESE = "zh"


def explain(  # noqa: PLR0913 (one parameter per option)
    *,
    pattern: Annotated[
        str | None,
        typer.Option(
            help='Who may attend to whom, as in "causal & window(511, 0) | global(4)".',
            show_default="full",
        ),
    ] = None,
    length: Annotated[
        int | None, typer.Option(min=0, max=_LONGEST, help="Tokens: queries and keys alike.")
    ] = None,
    queries: Annotated[
        int | None, typer.Option(min=0, max=_LONGEST, help="Queries, where they differ from keys.")
    ] = None,
    keys: Annotated[
        int | None, typer.Option(min=0, max=_LONGEST, help="Keys, where they differ from queries.")
    ] = None,
    heads: Annotated[
        int | None,
        typer.Option(min=0, max=_MOST, help="Query heads.", show_default=str(_HEADS)),
    ] = None,
    kv_heads: Annotated[
        int | None,
        typer.Option(min=0, max=_MOST, help="Key/value heads.", show_default="as query heads"),
    ] = None,
    head_dim: Annotated[
        int | None,
        typer.Option(min=0, max=_MOST, help="Width of a head.", show_default=str(_WIDTH)),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=0, max=_MOST, help="Samples.", show_default="1")
    ] = None,
    dtype: Annotated[
        _Dtype | None, typer.Option(help="Element type.", show_default="float32")
    ] = None,
    backward: Annotated[
        bool, typer.Option("--backward", help="Count the gradients as well.")
    ] = False,
    draw: Annotated[
        bool, typer.Option("--draw", help="Draw the pattern; a long one at a scale that is named.")
    ] = False,
    compare: Annotated[
        bool, typer.Option("--variants", help="Compare the kinds of attention, measured here.")
    ] = False,
    lang: Annotated[
        _Language | None, typer.Option(help="Language of --variants.", show_default="en")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what attention of some sizes costs and which backend runs it, without running it.

    Live pairs, multiplications, bytes, growth, the time that it takes on this machine, and every
    reason why a backend will not do. With --variants: a table of the kinds of attention, where
    their keys and values come from, what they are for and what they cost at --length tokens.
    """
    options: dict[str, Any] = {
        "--pattern": pattern,
        "--queries": queries,
        "--keys": keys,
        "--heads": heads,
        "--kv-heads": kv_heads,
        "--head-dim": head_dim,
        "--batch": batch,
        "--dtype": dtype,
        "--backward": backward or None,
        "--draw": draw or None,
    }
    if compare:
        given = [name for name, value in options.items() if value is not None]
        if given:
            raise WrongInput(
                f"--variants takes --length, --lang and --json, but not {', '.join(given)}"
            )
        variants.report(length, "en" if lang is None else lang.value, as_json=as_json)
        return
    if lang is not None:
        raise WrongInput("--lang is for --variants")
    facts = _explained(options, length)
    if as_json:
        print(json.dumps({name: value for name, value in facts.items() if name != "rows"}))
        return
    sizes = facts["sizes"].items()
    print(" · ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in sizes))
    rows = table("")
    rows.add_column("attend", no_wrap=True)
    rows.add_column(f"{facts['dtype']}{', with gradients' if backward else ''}")
    for name, said in groupby(facts["rows"], itemgetter(0)):
        rows.add_row(name, "; ".join(text for _, text in said))
    show(rows)
    if draw:
        print("\n".join(facts["drawing"]))


def _explained(options: dict[str, Any], length: int | None) -> dict[str, Any]:
    """Return all there is to say of a call, the rows for people among it."""

    def chosen(name: str, default: int | None) -> int:
        found: int | None = default if options[name] is None else options[name]
        if found is None:
            raise WrongInput("say how many tokens: --length N, or --queries N and --keys N")
        return found

    heads = chosen("--heads", _HEADS)
    sizes = {
        "batch": chosen("--batch", 1),
        "heads": heads,
        "kv_heads": chosen("--kv-heads", heads),
        "queries": chosen("--queries", length),
        "keys": chosen("--keys", length),
        "head_dim": chosen("--head-dim", _WIDTH),
    }
    rule = Full() if options["--pattern"] is None else _pattern(options["--pattern"])
    drawing = None
    try:
        plan = explain_sizes(
            *sizes.values(),
            pattern=rule,
            dtype=getattr(torch, options["--dtype"] or _Dtype.FLOAT32),
            backward=bool(options["--backward"]),
        )
        if options["--draw"]:
            drawing = drawn(rule, sizes["queries"], sizes["keys"]).splitlines()
    except PatternError as refusal:
        raise WrongInput(f"--pattern: {one_line(refusal, *_CALLERS)}") from refusal
    except ShapeError as refusal:
        raise WrongInput(one_line(refusal, *_CALLERS)) from refusal
    return {
        "pattern": repr(rule),
        "sizes": sizes,
        **asdict(plan),
        "expected_seconds": plan.expected_seconds,
        "drawing": drawing,
        "rows": [("pattern", repr(rule)), *plan.rows()],
    }


def _pattern(text: str) -> Pattern:
    check_text(text)
    try:
        return parse(text)
    except PatternError as wrong:
        raise WrongInput(f"--pattern: {one_line(wrong, *_CALLERS)}") from wrong
