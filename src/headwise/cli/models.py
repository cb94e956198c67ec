"""Opens transformers models by folder or hub id, and says in one line why one will not do."""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import headwise.hf
from headwise.cli.failures import Unable, WrongInput, first_line
from headwise.cli.output import waiting
from headwise.cli.packages import require_transformers

_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


@dataclass(frozen=True)
class Source:
    """A model whose configuration and tokenizer are open, its weights not yet.

    Attributes:
        name: The folder or hub id.
        config: Its transformers configuration.
        tokenizer: Its transformers tokenizer.
    """

    name: str
    config: Any
    tokenizer: Any

    @property
    def context(self) -> int | None:
        """The most tokens that the model takes at once; ``None`` where it names no limit."""
        limits = (
            getattr(self.config, "max_position_embeddings", None),
            self.tokenizer.model_max_length,
        )
        known = [limit for limit in limits if limit is not None and limit < 1 << 40]
        return min(known) if known else None


def source(model: str) -> Source:
    """Open configuration and tokenizer of a folder or hub id.

    Raises:
        WrongInput: There is no such model, or transformers cannot read it.
        Unable: transformers is not installed.
    """
    place = _place(model)
    transformers = require_transformers()
    with _refusing(model), waiting(f"Opening {model}"):
        config = transformers.AutoConfig.from_pretrained(place, trust_remote_code=False)
        tokenizer = transformers.AutoTokenizer.from_pretrained(place, trust_remote_code=False)
    return Source(model, config, tokenizer)


def text_model(opened: Source, attention: str = "headwise") -> Any:
    """Load a model that continues text, in float32, with the named attention.

    Raises:
        WrongInput: It is of another kind, or headwise does not serve it.
    """
    transformers = require_transformers()
    known = transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    kind = opened.config.model_type
    writers = [known[type(opened.config)].__name__] if type(opened.config) in known else []
    held = opened.config.architectures or writers
    if opened.config.is_encoder_decoder or not set(held) & set(writers):
        raise WrongInput(
            f"{opened.name} holds {', '.join(held) or kind}, which does not continue text; "
            "name a decoder-only model, such as a Llama or GPT-2"
        )
    return _load(opened, transformers.AutoModelForCausalLM.from_pretrained, attention)


def encoder(opened: Source, attention: str = "headwise") -> Any:
    """Load a model that turns tokens into vectors, in float32, with the named attention.

    Raises:
        WrongInput: It is of another kind, or headwise does not serve it.
    """
    transformers = require_transformers()
    known = type(opened.config) in transformers.MODEL_MAPPING
    if opened.config.is_encoder_decoder or not known:
        raise WrongInput(
            f"{opened.name} is a {opened.config.model_type} model, which gives no sentence "
            "vectors; name an encoder, such as a BERT"
        )
    return _load(opened, transformers.AutoModel.from_pretrained, attention)


def _load(opened: Source, from_pretrained: Callable[..., Any], attention: str) -> Any:
    if attention == "headwise":
        headwise.hf.register()
    with _refusing(opened.name), _loading(opened.name):
        model, report = from_pretrained(
            _place(opened.name),
            config=opened.config,
            dtype=torch.float32,
            attn_implementation=attention,
            output_loading_info=True,
            trust_remote_code=False,
        )
    # A pooler is not part of a sentence vector, and many encoders come without one.
    missing = sorted(name for name in report["missing_keys"] if not name.startswith("pooler."))
    if missing:
        raise WrongInput(
            f"{opened.name} lacks {len(missing)} of the weights that {type(model).__name__} "
            f"needs, such as {missing[0]}"
        )
    return model.eval()


def _place(model: str) -> str:
    """Return what transformers is to open: a folder that exists, or a hub id."""
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


@contextmanager
def _refusing(model: str) -> Iterator[None]:
    """Turn what transformers says of a model that it cannot open into one line."""
    try:
        yield
    except ImportError as error:
        raise Unable(f"opening {model} needs a package: {first_line(error)}") from error
    except Exception as error:
        raise WrongInput(f"cannot open the model {model}: {first_line(error)}") from error
