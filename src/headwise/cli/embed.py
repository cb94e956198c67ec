"""``headwise embed``: sentence vectors through headwise's attention, and how alike they are."""

import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.table import Table

from headwise.cli import demo_models
from headwise.cli.attention_words import KNOWN, read_attention
from headwise.cli.failures import Unable, WrongInput, check_text, running
from headwise.cli.models import Source, encoder, source
from headwise.cli.output import show, table, waiting
from headwise.cli.prepared import Change, prepare
from headwise.cli.sentence_vectors import meant_otherwise, sentence_vectors, tokens_for

_SHOWN = 40


def embed(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[MODEL] TEXT…",
            help="The texts. The first argument is the MODEL if it is an existing folder, or if "
            "it holds a slash and no space (such as owner/name) and --model is not given.",
            show_default=False,
        ),
    ],
    named: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="A transformers folder or hub id; every argument is then a TEXT.",
            show_default=f"{demo_models.MINILM.name}, fetched on first use",
        ),
    ] = None,
    accelerate: Annotated[
        bool,
        typer.Option(
            "--accelerate",
            help="Also put faster code in place of linear layers and of attention that models "
            "compute by themselves (Longformer, BigBird, MPNet …), and leave padding out of all "
            "layers where that can be: the same vectors.",
        ),
    ] = False,
    attention: Annotated[
        str | None,
        typer.Option(
            metavar="WORDS",
            help=f"Other attention than the model was trained with: {KNOWN}.",
            show_default=False,
        ),
    ] = None,
    stats: Annotated[
        bool,
        typer.Option(
            "--stats",
            help="Print on stderr the time, what is served and accelerated, and how far "
            "--attention moved the answers.",
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print vectors and similarities as one JSON object.")
    ] = False,
) -> None:
    """Print how alike the TEXTs are: the cosine of their sentence vectors, -1 to 1.

    A sentence vector is the mean of the model's last token vectors, padding left out, scaled to
    length 1; computed in float32. Of a model of an encoder and a decoder it is the encoder's.
    """
    check_text(*words)
    model, texts = _split(words, named)
    if not texts:
        raise WrongInput("no text given; name at least one TEXT after the MODEL")
    for number, text in enumerate(texts, 1):
        if not text.strip():
            raise WrongInput(f"text {number} is empty")
    chosen = None if attention is None else read_attention(attention)
    opened = source(str(demo_models.ready(demo_models.MINILM)) if model is None else model)
    longest = _longest(opened, texts)
    others = meant_otherwise(opened.name)
    if others is not None:
        print(
            f"headwise embed: {opened.name} is meant to be used with {others}; "
            "these vectors are means of its token vectors",
            file=sys.stderr,
        )
    loaded = encoder(opened, accelerated=accelerate)
    change = None
    if chosen is not None:
        given = tokens_for(loaded, opened, [longest.text])
        change = Change(chosen, loaded, given, False, longest.tokens, stats or as_json)
    with running(opened.name):
        prepared = prepare(
            loaded, command="embed", accelerate=accelerate, unpad=True, change=change
        )
        started = time.perf_counter()
        with waiting("Embedding"):
            vectors = sentence_vectors(loaded, opened, texts)
        seconds = time.perf_counter() - started
    if not vectors.isfinite().all():
        raise Unable(f"{opened.name} made vectors that hold NaN or infinity; see its weights")
    similarities = (vectors @ vectors.T).tolist()
    if as_json:
        found = {"vectors": vectors.tolist(), "similarities": similarities}
        told = {"texts": texts, **found, "prepared": prepared.as_json()}
        print(json.dumps({"model": opened.name, **told}))
        return
    show(_rows(texts, similarities))
    if stats:
        print(f"{len(texts)} texts in {seconds:.3g} s", file=sys.stderr)
        prepared.tell()


def _rows(texts: Sequence[str], similarities: list[list[float]]) -> Table:
    rows = table("")
    rows.add_column("text")
    for number in range(1, len(texts) + 1):
        rows.add_column(str(number), justify="right", no_wrap=True)
    for number, (text, row) in enumerate(zip(texts, similarities, strict=True), 1):
        short = text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
        rows.add_row(f"{number} {short}", *(f"{value:.3f}" for value in row))
    return rows


def _split(words: list[str], named: str | None) -> tuple[str | None, list[str]]:
    if named is not None:
        return named, words
    is_folder = Path(words[0]).expanduser().is_dir() if words[0] else False
    names_one = len(words) > 1 and re.fullmatch(r"\S*/\S*", words[0]) is not None
    return (words[0], words[1:]) if is_folder or names_one else (None, words)


class _Longest(NamedTuple):
    """The longest text, and its length."""

    text: str
    tokens: int


def _longest(opened: Source, texts: Sequence[str]) -> _Longest:
    """See that texts can be padded and fit the model, and return the longest."""
    tokenizer, room = opened.tokenizer, opened.context
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    found = _Longest("", 0)
    for number, text in enumerate(texts, 1):
        length = len(tokenizer(text)["input_ids"])
        if room is not None and length > room:
            raise WrongInput(
                f"text {number} has {length} tokens, but {opened.name} takes {room} at once; "
                "shorten or split it"
            )
        if length > found.tokens:
            found = _Longest(text, length)
    return found
