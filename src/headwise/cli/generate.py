"""``headwise generate``: a language model writes on, through headwise's attention and cache."""

import json
import sys
from collections import Counter
from typing import Annotated, Any

import torch
import typer

from headwise import _native
from headwise.cli import demo_models
from headwise.cli.cache_kinds import KINDS, CacheKind, cache_kind
from headwise.cli.continuation import Continuation, Sampling, continue_text
from headwise.cli.failures import WrongInput, check_text
from headwise.cli.models import Source, source, text_model
from headwise.cli.output import show, table


def generate(  # noqa: PLR0913 (one parameter per option)
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[MODEL] PROMPT",
            help="A transformers folder or hub id, and the text to continue. With one argument "
            f"it is the PROMPT, for {demo_models.SMOLLM2.name} (fetched on first use into the "
            "folder that `headwise info` shows; HEADWISE_MODELS names another).",
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
        bool, typer.Option("--stats", help="Print speed, cache and backend on stderr.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Continue PROMPT with a language model, in float32, as the text is produced.

    The likeliest token is taken each time, unless a temperature, top-k or top-p is given. Only
    what the model writes goes to stdout; on a terminal the prompt stands before it.
    """
    model, prompt = _two(words)
    sampling = Sampling(temperature, top_k, top_p, seed)
    check_text(prompt)
    if not prompt.strip():
        raise WrongInput("the prompt is empty; give a text to continue")
    if not sampling.draws and (seed, top_k, top_p) != (None, None, None):
        raise WrongInput(
            "without drawing, --seed, --top-k and --top-p do nothing; add --temperature above 0"
        )
    if cache is not None and no_cache:
        raise WrongInput("--cache and --no-cache exclude each other; leave one of them out")
    kind = None if no_cache else cache_kind("growing" if cache is None else cache)
    opened = source(model or str(demo_models.ready(demo_models.SMOLLM2)))
    tokens = opened.tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    _check_room(opened, int(tokens["input_ids"].shape[1]), max_new_tokens)
    written = continue_text(
        text_model(opened),
        opened,
        tokens,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        cache_kind=kind,
        emit=_silent if as_json else _Typewriter(prompt),
    )
    figures = _figures(opened.name, written, kind)
    if as_json:
        text = {"prompt": prompt, "text": written.text, "tokens": written.tokens}
        print(json.dumps({"model": opened.name, **text, "ended": written.ended, "stats": figures}))
        return
    print()
    if kind is not None and figures["cache_dropped_tokens"]:
        print(
            f"headwise generate: --cache {kind} has dropped {figures['cache_dropped_tokens']} of "
            f"{written.cache_tokens} tokens; in each layer a token saw the last {kind.window}",
            file=sys.stderr,
        )
    if stats:
        rows = table("", stderr=True)
        rows.add_column("figure")
        rows.add_column("value")
        for name, value in figures.items():
            rows.add_row(name.replace("_", " "), _readable(value))
        show(rows, stderr=True)


def _two(words: list[str]) -> tuple[str | None, str]:
    if len(words) > 2:
        raise WrongInput(
            f"takes [MODEL] PROMPT, got {len(words)} arguments; put the prompt in quotes"
        )
    return (words[0] if len(words) == 2 else None), words[-1]


def _check_room(opened: Source, prompt_tokens: int, max_new_tokens: int) -> None:
    room = opened.context
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


def _figures(name: str, written: Continuation, kind: CacheKind | None) -> dict[str, Any]:
    new = len(written.tokens)
    prefill, decode = written.prefill_seconds, written.decode_seconds
    return {
        "model": name,
        "prompt_tokens": written.prompt_tokens,
        "new_tokens": new,
        "prefill_seconds": round(prefill, 4),
        "prefill_tokens_per_second": round(written.prompt_tokens / prefill, 1),
        "decode_seconds": round(decode, 4),
        "decode_tokens_per_second": round((new - 1) / decode, 1) if new > 1 else None,
        "cache": None if kind is None else str(kind),
        "cache_bytes": written.cache_bytes,
        "cache_dropped_tokens": None if kind is None else kind.dropped(written.cache_tokens or 0),
        "prefill_backend": _worded(written.prefill_backends),
        "decode_backend": _worded(written.decode_backends),
        "instruction_set": _native.isa(),
        "threads": torch.get_num_threads(),
    }


def _worded(ran: Counter[str]) -> str | None:
    """Name the backends that took the attention calls, the busiest first."""
    if len(ran) < 2:
        return next(iter(ran), None)
    return ", ".join(f"{name} ({calls} calls)" for name, calls in ran.most_common())


def _readable(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:,}" if isinstance(value, int | float) else str(value)
