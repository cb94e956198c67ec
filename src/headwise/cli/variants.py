"""The kinds of attention side by side: what they are for, and what each costs on this machine."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Any

import torch

from headwise.cli.bench.measure import alternate
from headwise.cli.bench.summary import machine
from headwise.cli.failures import WrongInput
from headwise.cli.folding import column_widths, folded
from headwise.cli.output import show, steps, table
from headwise.ops import attend, explain
from headwise.ops.softmax.plan import scaled
from headwise.patterns import Causal, Full, Pattern, Strided, Window, bigbird, longformer

_LENGTHS = (256, 16_384)
_USUAL = 2048
_SPELLED_OUT = 4096  # tokens whose scores fit in memory where no kernel of ours runs
_HEADS, _WIDTH = 8, 64
_SECONDS = 0.25


@dataclass(frozen=True)
class Kind:
    """A kind of attention to compare.

    Attributes:
        name: Its name in ``variants.json``.
        formula: How its time grows; the letters stand in the legend of ``variants.json``.
        pattern: Who may attend to whom.
        queries: How many queries there are for so many keys.
    """

    name: str
    formula: str
    pattern: Pattern
    queries: Callable[[int], int] = int


@dataclass(frozen=True)
class Cost:
    """What a kind costs, counted and measured.

    Attributes:
        kind: Name of the kind.
        formula: How its time grows.
        pattern: Who may attend to whom, as Python writes it.
        queries: Queries of the call.
        keys: Keys of the call.
        live_fraction: Share of the pairs that are allowed.
        flops: Multiplications and additions over the allowed pairs.
        bytes: Query, key, value and output, each counted once.
        seconds: Time of the fastest of several calls.
        backend: What computed it.
    """

    kind: str
    formula: str
    pattern: str
    queries: int
    keys: int
    live_fraction: float
    flops: int
    bytes: int
    seconds: float
    backend: str


KINDS = (
    Kind("full", "n²·d", Full()),
    Kind("cross", "m·n·d", Full(), lambda length: length // 4),
    Kind("causal", "n²/2·d", Causal()),
    Kind("local", "n·2w·d", Window(128, 128)),
    Kind("strided", "n·(s + n/2s)·d", Strided(128) & Causal()),
    Kind("longformer", "n·(2w + 2g)·d", longformer(256, [0])),
    Kind("bigbird", "n·(3 + 4 + 3)·b·d", bigbird(64, 3, 1, 3, seed=0)),
    Kind("step", "n·d", Causal(), lambda length: 1),
)


def report(length: int | None, lang: str, *, as_json: bool) -> None:
    """Measure every kind at so many tokens, 2,048 if none are given, and print what came out.

    Raises:
        WrongInput: So few tokens that nothing can be told, or so many that it takes minutes.
    """
    length = _USUAL if length is None else length
    if not _LENGTHS[0] <= length <= _LENGTHS[1]:
        low, high = _LENGTHS
        raise WrongInput(f"--variants measures {low:,} to {high:,} tokens, not {length:,}")
    costs = []
    with torch.no_grad(), steps() as progress:
        task = progress.add_task("Measuring", total=len(KINDS))
        for kind in KINDS:
            progress.update(task, description=f"Measuring {kind.name}")
            costs.append(_measured(kind, length))
            progress.advance(task)
    words: dict[str, Any] = json.loads(
        files("headwise.cli").joinpath("variants.json").read_text(encoding="utf-8")
    )[lang]
    if as_json:
        print(json.dumps(_as_json(costs, words), ensure_ascii=False))
    else:
        _print_tables(costs, words)


def _as_json(costs: list[Cost], words: dict[str, Any]) -> dict[str, Any]:
    return {
        "machine": machine(),
        "heads": _HEADS,
        "head_dim": _WIDTH,
        "dtype": "float32",
        "kinds": [{**words["kinds"][cost.kind], **asdict(cost)} for cost in costs],
    }


def _print_tables(costs: list[Cost], words: dict[str, Any]) -> None:
    """Print what the kinds are for, and below it what they cost."""
    place, columns = machine(), words["columns"]
    meaning = table(words["title"])
    names = ("name", "source", "special", "use")
    for name in names:
        meaning.add_column(columns[name])
    texts = [words["kinds"][cost.kind] for cost in costs]
    widths = column_widths([[columns[name], *(text[name] for text in texts)] for name in names])
    for text in texts:
        cells = zip((text[name] for name in names), widths, strict=True)
        meaning.add_row(*(folded(cell, width) for cell, width in cells))
    show(meaning)
    facts = {
        "keys": f"{costs[0].keys:,}",
        "heads": _HEADS,
        "width": _WIDTH,
        "cpu": place["cpu"],
        "isa": place["instruction_set"] or "-",
        "threads": words["threads"]["one" if place["threads"] == 1 else "more"].format(
            place["threads"]
        ),
    }
    price = table(words["measured"].format(**facts))
    price.add_column(columns["name"])
    price.add_column(columns["formula"])
    for name in ("pairs", "flops", "bytes", "time"):
        price.add_column(columns[name], justify="right", no_wrap=True)
    for cost in costs:
        price.add_row(
            words["kinds"][cost.kind]["name"],
            cost.formula,
            f"{100 * cost.live_fraction:.3g}%",
            scaled(cost.flops, "FLOP"),
            scaled(cost.bytes, "B"),
            scaled(cost.seconds, "s"),
        )
    show(price)
    print(words["legend"])


def _measured(kind: Kind, length: int) -> Cost:
    draw = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(1, _HEADS, count, _WIDTH, generator=draw)
        for count in (kind.queries(length), length, length)
    )
    plan = explain(query, key, value, kind.pattern)
    if plan.backend != "native" and length > _SPELLED_OUT:
        raise WrongInput(
            f"without the native backend --variants measures at most {_SPELLED_OUT:,} tokens, "
            f"not {length:,}"
        )

    def call() -> None:
        attend(query, key, value, kind.pattern)

    call()
    return Cost(
        kind=kind.name,
        formula=kind.formula,
        pattern=repr(kind.pattern),
        queries=kind.queries(length),
        keys=length,
        live_fraction=plan.live_fraction,
        flops=plan.flops,
        bytes=plan.bytes,
        seconds=min(alternate({kind.name: call}, _SECONDS)[kind.name]),
        backend=str(plan.backend),
    )
