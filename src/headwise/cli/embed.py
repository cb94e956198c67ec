"""``headwise embed``: sentence vectors through headwise's attention, and how alike they are."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from headwise.cli import demo_models
from headwise.cli.failures import WrongInput, check_text
from headwise.cli.models import Source, encoder, source
from headwise.cli.output import show, table, waiting
from headwise.cli.sentence_vectors import sentence_vectors

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
    as_json: Annotated[
        bool, typer.Option("--json", help="Print vectors and similarities as one JSON object.")
    ] = False,
) -> None:
    """Print how alike the TEXTs are: the cosine of their sentence vectors, -1 to 1.

    A sentence vector is the mean of the model's last token vectors, padding left out, scaled to
    length 1; computed in float32.
    """
    check_text(*words)
    model, texts = _split(words, named)
    if not texts:
        raise WrongInput("no text given; name at least one TEXT after the MODEL")
    for number, text in enumerate(texts, 1):
        if not text.strip():
            raise WrongInput(f"text {number} is empty")
    opened = source(model or str(demo_models.ready(demo_models.MINILM)))
    _prepare(opened, texts)
    loaded = encoder(opened)
    with waiting("Embedding"):
        vectors = sentence_vectors(loaded, opened, texts)
    similarities = (vectors @ vectors.T).tolist()
    if as_json:
        found = {"vectors": vectors.tolist(), "similarities": similarities}
        print(json.dumps({"model": opened.name, "texts": texts, **found}))
        return
    rows = table("")
    rows.add_column("text")
    for number in range(1, len(texts) + 1):
        rows.add_column(str(number), justify="right", no_wrap=True)
    for number, (text, row) in enumerate(zip(texts, similarities, strict=True), 1):
        short = text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
        rows.add_row(f"{number} {short}", *(f"{value:.3f}" for value in row))
    show(rows)


def _split(words: list[str], named: str | None) -> tuple[str | None, list[str]]:
    if named is not None:
        return named, words
    is_folder = Path(words[0]).expanduser().is_dir() if words[0] else False
    names_one = len(words) > 1 and re.fullmatch(r"\S*/\S*", words[0]) is not None
    return (words[0], words[1:]) if is_folder or names_one else (None, words)


def _prepare(opened: Source, texts: Sequence[str]) -> None:
    """See that texts can be padded and fit the model."""
    tokenizer, room = opened.tokenizer, opened.context
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    for number, text in enumerate(texts, 1):
        length = len(tokenizer(text)["input_ids"])
        if room is not None and length > room:
            raise WrongInput(
                f"text {number} has {length} tokens, but {opened.name} takes {room} at once; "
                "shorten or split it"
            )
