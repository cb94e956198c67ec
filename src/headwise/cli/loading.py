"""Loads a transformers model for a command, and says in one line why it cannot be loaded."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import headwise.hf
from headwise.cli.failures import Unable, WrongInput, first_line
from headwise.cli.output import waiting
from headwise.cli.packages import require_transformers
from headwise.errors import BackendRefused

_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


def place_of(model: str) -> str:
    """Return what transformers is to open: a folder that exists, or a hub id.

    Raises:
        WrongInput: It is neither.
    """
    if not model:
        raise WrongInput("MODEL is empty; name a transformers folder or a hub id")
    path = Path(model).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise WrongInput(f"{model} holds no config.json: not a transformers folder")
        return str(path)
    if path.exists():
        raise WrongInput(f"{model} is a file; MODEL is a transformers folder or a hub id")
    if not _HUB_ID.fullmatch(model):
        raise WrongInput(f"there is no folder {model}")
    return model


def load(
    name: str,
    config: Any,
    kind: Any,
    attention: str | None = "headwise",
    *,
    dtype: torch.dtype = torch.float32,
    accelerated: bool = False,
) -> Any:
    """Load a model with all its weights, ready to answer.

    Args:
        name: Folder or hub id.
        config: Its configuration.
        kind: The class of transformers to load it as; it has ``from_pretrained``.
        attention: The attention it is loaded with; ``None`` = the one that transformers chooses.
        dtype: Element type of the weights.
        accelerated: Whether the caller accelerates it, so that its attention is chosen then.

    Raises:
        WrongInput: There is no such model, its weights do not fit, or headwise does not serve it.
    """
    if attention == "headwise":
        headwise.hf.register()
    with refusing(name), _loading(name):
        try:
            model, report = kind.from_pretrained(
                place_of(name),
                config=config,
                dtype=dtype,
                attn_implementation=None if accelerated else attention,
                output_loading_info=True,
                trust_remote_code=False,
            )
        except BackendRefused as refusal:
            raise WrongInput(_of_its_own(name, config, kind, refusal)) from refusal
    missing = sorted(key for key in report["missing_keys"] if not _is_dispensable(key, model))
    if missing:
        raise WrongInput(
            f"{name} lacks {len(missing)} of the weights that {type(model).__name__} "
            f"needs, such as {missing[0]}"
        )
    return model.eval()


def _is_dispensable(key: str, model: Any) -> bool:
    """Say whether a model does without a weight: one that is computed, or of a pooler.

    A pooler is not part of a sentence vector, and many encoders come without one.
    """
    owner = type(model.get_submodule(key.rpartition(".")[0])).__name__
    return key.startswith("pooler.") or "Sinusoidal" in owner


@contextmanager
def refusing(model: str) -> Iterator[None]:
    """Turn what transformers says of a model that it cannot open into one line."""
    try:
        yield
    except WrongInput:
        raise
    except ImportError as error:
        raise Unable(f"opening {model} needs a package: {first_line(error)}") from error
    except Exception as error:
        raise WrongInput(f"cannot open the model {model}: {first_line(error)}") from error


def _of_its_own(name: str, config: Any, kind: Any, refusal: BackendRefused) -> str:
    """Say that a model attends by its own code, and what can be done about it."""
    said = first_line(refusal).removeprefix("attn_implementation='headwise': ")
    with torch.device("meta"):
        model = headwise.hf.accelerate(kind.from_config(config))
    rows = headwise.hf.report(model)
    way_out = "--accelerate replaces that code"
    if not all(row.served for row in rows):
        way_out = "headwise has nothing to put in place of that code; --accelerate makes the rest"
        way_out += " of the model faster"
    return f"cannot open the model {name}: {said}; {way_out}"


@contextmanager
def _loading(model: str) -> Iterator[None]:
    """Show that weights take their time; those that come from the hub bring their own bars."""
    if Path(model).expanduser().is_dir() or not sys.stderr.isatty():
        with waiting(f"Loading {model}"):
            yield
        return
    bars = require_transformers().logging
    bars.enable_progress_bar()
    try:
        yield
    finally:
        bars.disable_progress_bar()
