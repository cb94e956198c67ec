"""The model that is measured: loaded, or built from its configuration with random weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from headwise.cli.failures import WrongInput
from headwise.cli.loading import load, place_of, refusing
from headwise.cli.output import waiting
from headwise.cli.packages import require_transformers

_WEIGHTS = ("*.safetensors", "*.bin", "*.index.json")


@dataclass(frozen=True)
class Subject:
    """A model to measure.

    Attributes:
        name: As it was typed.
        model: The model, ready to answer.
        random: Whether its weights are random numbers.
    """

    name: str
    model: Any
    random: bool

    @property
    def parameters(self) -> int:
        """How many numbers it has learned."""
        return sum(weight.numel() for weight in self.model.parameters())


def subject(name: str, dtype: torch.dtype) -> Subject:
    """Load a folder or hub id; where there is a configuration alone, draw weights.

    The class is the one that the configuration names, so a model with a head has it.

    Raises:
        WrongInput: There is no such model, or transformers cannot read it.
        Unable: transformers is not installed.
    """
    transformers = require_transformers()
    path = Path(name).expanduser()
    bare = path.suffix == ".json" and not path.is_dir()
    if bare and not path.is_file():
        raise WrongInput(f"there is no file {name}")
    place = str(path) if bare else place_of(name)
    with refusing(name), waiting(f"Opening {name}"):
        config = transformers.AutoConfig.from_pretrained(place, trust_remote_code=False)
    kind = _class_of(transformers, name, config)
    if not bare and not (path.is_dir() and not any(any(path.glob(end)) for end in _WEIGHTS)):
        return Subject(name, load(name, config, kind, None, dtype=dtype), random=False)
    with refusing(name), waiting(f"Drawing weights for {name}"), torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return Subject(name, kind._from_config(config, dtype=dtype).eval(), random=True)


def _class_of(transformers: Any, name: str, config: Any) -> Any:
    """Return the class that a configuration names, or else the model without a head."""
    for held in config.architectures or ():
        kind = getattr(transformers, held, None)
        if kind is not None:
            return kind
    if type(config) in transformers.MODEL_MAPPING:
        return transformers.MODEL_MAPPING[type(config)]
    raise WrongInput(f"{name} is a {config.model_type} model, which transformers has no class for")
