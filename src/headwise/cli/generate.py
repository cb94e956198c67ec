"""``headwise generate``: a language model writes, through headwise's attention and cache."""

import json
import sys
from dataclasses import replace
from typing import Annotated, Any

import typer

from headwise.cli import demo_models
from headwise.cli.attention_words import KNOWN, AttentionWords, read_attention
from headwise.cli.cache_kinds import KINDS, CacheKind, cache_kind
from headwise.cli.continuation import Continuation, Sampling, continue_text
from headwise.cli.failures import WrongInput, check_text, running
from headwise.cli.generation_stats import figures, readable
from headwise.cli.languages import marks_of
from headwise.cli.models import Source, source, text_model
from headwise.cli.output import show, table
from headwise.cli.prepared import Change, Prepared, prepare


def generate(  # noqa: PLR0913 (one parameter per option)
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[MODEL] PROMPT",
            help="A transformers folder or hub id, and the text to continue; a model of an "
            "encoder and a decoder (T5, BART, Marian …) writes from it instead, as its source. "
            f"With one argument it is the PROMPT, for {demo_models.SMOLLM2.name} (fetched on first "
            "use into the folder that `headwise info` shows; HEADWISE_MODELS names another).",
            show_default=False,
        ),
    ],
    *,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Most tokens to write.")] = 64,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, help="Draw tokens, at this temperature; 0: do not.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(min=1, help="Draw among that many likeliest tokens.")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="Draw among the likeliest up to a share.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**63 - 1, help="Seed of the draw.")
    ] = None,
    beams: Annotated[
        int,
        typer.Option(min=1, max=64, help="Texts kept at once; the likeliest is printed whole."),
    ] = 1,
    source_language: Annotated[
        str | None,
        typer.Option(
            metavar="CODE",
            help="Language of the source, as the tokenizer names it.",
            show_default=False,
        ),
    ] = None,
    target_language: Annotated[
        str | None,
        typer.Option(
            metavar="CODE",
            help="Language to translate into, such as fr or fra_Latn.",
            show_default=False,
        ),
    ] = None,
    forced_bos: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            help="Token of the vocabulary that is written first.",
            show_default=False,
        ),
    ] = None,
    accelerate: Annotated[
        bool,
        typer.Option(
            "--accelerate",
            help="Also put faster code in place of linear layers and of attention that models "
            "compute by themselves (Longformer, BigBird, LED, Bloom …): the same answers.",
        ),
    ] = False,
    attention: Annotated[
        str | None,
        typer.Option(
            metavar="WORDS",
            help=f"Other attention than the model was trained with: {KNOWN}. Of an encoder and a "
            "decoder the encoder gets it.",
            show_default=False,
        ),
    ] = None,
    cache: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help=f"How keys and values are kept: {KINDS}. int8 takes about a quarter of the room; "
            "a window keeps the last N tokens and drops the others, which changes the text; all "
            "but the window and int8 give the same text.  [default: growing]",
            show_default=False,
        ),
    ] = None,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Compute all anew for each token, to see the cost.")
    ] = False,
    stats: Annotated[
        bool,
        typer.Option(
            "--stats",
            help="Print on stderr speed, cache, backend, what is served and accelerated, and how "
            "far --attention moved the answer.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Continue PROMPT with a language model, in float32, as the text is produced.

    The likeliest token is taken each time, unless a temperature, top-k or top-p is given, or
    several beams. Only what the model writes goes to stdout; on a terminal the prompt stands before
    it. The model's own settings count where they force or forbid tokens, and not otherwise.
    """
    model, prompt = _two(words)
    sampling = Sampling(temperature, top_k, top_p, seed, beams)
    check_text(prompt)
    _check(prompt, sampling, cache if no_cache else None)
    kind = None if no_cache else cache_kind("growing" if cache is None else cache)
    chosen = None if attention is None else read_attention(attention)
    opened = source(str(demo_models.ready(demo_models.SMOLLM2)) if model is None else model)
    marks = marks_of(opened, source_language, target_language, forced_bos)
    tokens = opened.tokenizer(
        marks.prefix + prompt, return_tensors="pt", return_token_type_ids=False
    )
    _check_room(opened, int(tokens["input_ids"].shape[1]), max_new_tokens)
    loaded = text_model(opened, accelerated=accelerate)
    with running(opened.name):
        prepared = prepare(
            loaded,
            command="generate",
            accelerate=accelerate,
            change=_change(opened, loaded, tokens, max_new_tokens, chosen, stats or as_json),
        )
        written = continue_text(
            loaded,
            opened,
            tokens,
            max_new_tokens=max_new_tokens,
            sampling=replace(sampling, first_token=marks.first_token),
            cache_kind=kind,
            emit=_silent if as_json else _Typewriter("" if opened.is_pair else prompt),
        )
    found = figures(opened.name, written, kind)
    if as_json:
        text = {"prompt": prompt, "text": written.text, "tokens": written.tokens}
        told = {"ended": written.ended, "stats": found, "prepared": prepared.as_json()}
        print(json.dumps({"model": opened.name, **text, **told}))
        return
    print()
    _tell(written, kind, found, prepared if stats else None)


def _check(prompt: str, sampling: Sampling, unused_cache: str | None) -> None:
    """Refuse what does not go together, before anything is opened."""
    if not prompt.strip():
        raise WrongInput("the prompt is empty; give a text to continue")
    given = (sampling.seed, sampling.top_k, sampling.top_p)
    if not sampling.draws and given != (None, None, None):
        raise WrongInput(
            "without drawing, --seed, --top-k and --top-p do nothing; add --temperature above 0"
        )
    if sampling.draws and sampling.beams > 1:
        raise WrongInput(
            "--beams keeps the likeliest texts and --temperature, --top-k and --top-p draw one; "
            "leave one of them out"
        )
    if unused_cache is not None:
        raise WrongInput("--cache and --no-cache exclude each other; leave one of them out")


def _change(
    opened: Source,
    model: Any,
    tokens: Any,
    max_new_tokens: int,
    attention: AttentionWords | None,
    measured: bool,
) -> Change | None:
    """Return the other attention that was asked for; of a pair the encoder gets it."""
    if attention is None:
        return None
    read = int(tokens["input_ids"].shape[1])
    if opened.is_pair:
        return Change(attention, model.get_encoder(), tokens, False, read, measured)
    return Change(attention, model, tokens, True, read + max_new_tokens, measured)


def _tell(
    written: Continuation, kind: CacheKind | None, found: dict[str, Any], prepared: Prepared | None
) -> None:
    """Say on stderr what was dropped, and where it was asked for all there is to say."""
    if kind is not None and found["cache_dropped_tokens"]:
        print(
            f"headwise generate: --cache {kind} has dropped {found['cache_dropped_tokens']} of "
            f"{written.cache_tokens} tokens; in each layer a token saw the last {kind.window}",
            file=sys.stderr,
        )
    if prepared is not None:
        rows = table("", stderr=True)
        rows.add_column("figure")
        rows.add_column("value")
        for name, value in found.items():
            rows.add_row(name.replace("_", " "), readable(value))
        show(rows, stderr=True)
        prepared.tell()


def _two(words: list[str]) -> tuple[str | None, str]:
    if len(words) > 2:
        raise WrongInput(
            f"takes [MODEL] PROMPT, got {len(words)} arguments; put the prompt in quotes"
        )
    return (words[0] if len(words) == 2 else None), words[-1]


def _check_room(opened: Source, prompt_tokens: int, max_new_tokens: int) -> None:
    room = opened.context
    if opened.is_pair:
        if room is not None and prompt_tokens > room:
            raise WrongInput(
                f"the source has {prompt_tokens} tokens, but {opened.name} takes {room} at once; "
                "shorten or split it"
            )
        # A first token of no text stands before the others.
        target = opened.target_context
        if target is not None and 1 + max_new_tokens > target:
            raise WrongInput(
                f"{opened.name} writes at most {target - 1} tokens; use --max-new-tokens "
                f"{target - 1}"
            )
        return
    if room is not None and prompt_tokens + max_new_tokens > room:
        left = room - prompt_tokens
        way_out = f"use --max-new-tokens {left}" if left > 0 else "shorten the prompt"
        raise WrongInput(
            f"the prompt has {prompt_tokens} tokens and {max_new_tokens} are to follow, but "
            f"{opened.name} has a context of {room}; {way_out}"
        )


class _Typewriter:
    """Writes text as it comes; on a terminal the prompt goes first."""

    def __init__(self, prompt: str) -> None:
        self._first = prompt if sys.stdout.isatty() else ""

    def __call__(self, piece: str) -> None:
        print(self._first + piece, end="", flush=True)
        self._first = ""


def _silent(piece: str) -> None:
    """Write nothing: the whole text goes into the JSON object."""
