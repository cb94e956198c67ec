"""Takes a model of transformers over, by the tables of ``key_maps``."""

import re
from collections.abc import Iterable
from copy import deepcopy
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headwise.models import classifier, heads, transformer
from headwise.models.configuration import HeadwiseConfig
from headwise.models.key_maps import KEY_MAPS, Head, KeyMap, Read, Taken
from headwise.models.transformer import HeadwisePreTrainedModel

_CALLER = "from_transformers"
# How far a table of sines may be from the exact ones, by rounding in each dtype and in float32.
_WAVES = {torch.float64: 1e-6, torch.float32: 1e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}


def from_transformers(model: nn.Module, **changes: Any) -> HeadwisePreTrainedModel:
    """Return one of our models with copies of the weights of a model of transformers.

    BERT, RoBERTa, GPT-2, Llama and Marian, without a head or with the usual ones, compute the same
    to rounding; padding in front of a sample is not counted as a position here, which in theirs it
    is for BERT, GPT-2 and Marian. The pooler of a ``BertModel`` stays behind: its classifier has
    one. Tokenizers go on fitting.

    Args:
        model: The model; it is not changed.
        changes: Arguments of ``HeadwiseConfig``, such as ``pattern=headwise.Window(63, 63)``, that
            give the weights another attention. The result is another function then.

    Returns:
        A model with the dtype, the mode and the generation settings of ``model``.

    Raises:
        TypeError: A model of another family, or of a class that there is no table for.
        ValueError: Settings of that model that ours do not have, or weights without a place.

    Example:
        >>> import headwise as hw
        >>> from transformers import BertConfig, BertForMaskedLM
        >>> theirs = BertForMaskedLM(BertConfig(num_hidden_layers=1, vocab_size=50))
        >>> type(hw.models.from_transformers(theirs)).__name__
        'HeadwiseForMaskedLM'
    """
    table, head = _tables_of(model)
    assert isinstance(model, PreTrainedModel)
    given = model.config
    _check_demands(table, given)
    settings = {**table.config, **head.config}
    config = HeadwiseConfig(**{**_read(settings, given), **changes})
    made: Any = _class_named(head.ours)(config)
    made.to(model.dtype)
    positions = made.headless.first.positions
    _load(made, _renamed(model, table, head, positions))
    if made.can_generate() and model.can_generate():
        made.generation_config = deepcopy(model.generation_config)
    taken: HeadwisePreTrainedModel = made.to(model.device).train(model.training)
    return taken


def _class_named(name: str) -> type[HeadwisePreTrainedModel]:
    holders = (transformer, heads, classifier)
    found: type[HeadwisePreTrainedModel] = next(
        getattr(each, name) for each in holders if hasattr(each, name)
    )
    return found


def _tables_of(model: nn.Module) -> tuple[KeyMap, Head]:
    kind = type(model)
    table = KEY_MAPS.get(getattr(getattr(model, "config", None), "model_type", ""))
    head = None if table is None else table.heads.get(kind.__name__)
    if table is None or head is None or not kind.__module__.startswith("transformers."):
        known = ", ".join(name for each in KEY_MAPS.values() for name in each.heads)
        raise TypeError(
            f"{_CALLER}: there is no table for {kind.__name__}\n"
            f"  hint: there are those of {known}; headwise.hf.accelerate(model) and "
            "hf.convert(model, …) work on models where they are"
        )
    return table, head


def _check_demands(table: KeyMap, config: Any) -> None:
    for name, allowed in table.demanded.items():
        found = getattr(config, name, allowed[0])
        if found not in allowed:
            raise _refusal(name, found, f"{' or '.join(map(repr, allowed))}")
    for one, other in table.equal:
        if getattr(config, one) != getattr(config, other):
            raise _refusal(other, getattr(config, other), f"{one} = {getattr(config, one)!r}")


def _read(given: Any, config: Any) -> Any:
    """Fill a table of settings with what a configuration says."""
    if isinstance(given, dict):
        return {name: _read(value, config) for name, value in given.items()}
    if not isinstance(given, Read):
        return given
    found = reduce(_attribute, given.name.split("."), config)
    if given.named is None:
        return found - given.minus if given.minus else found
    if found not in given.named:
        raise _refusal(given.name, found, f"one of {', '.join(given.named)}")
    return given.named[found]


def _attribute(holder: Any, name: str) -> Any:
    return holder[name] if isinstance(holder, dict) else getattr(holder, name)


def _renamed(
    model: PreTrainedModel, table: KeyMap, head: Head, positions: nn.Module | None
) -> dict[str, Tensor]:
    """Return their tensors under our names."""
    base = "" if head.ours == "HeadwiseModel" else f"{model.base_model_prefix}."
    ours = "model." if base else ""
    inside = {base + theirs: _within(ours, taken) for theirs, taken in table.names.items()}
    names = {**inside, **{name: _within("", taken) for name, taken in head.names.items()}}
    waves = [base + name for name in table.waves]
    found: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        if any(_parts(pattern, name) is not None for pattern in head.left):
            continue
        if any(_parts(pattern, name) is not None for pattern in waves):
            _check_waves(name, tensor, positions)
            continue
        for each, part in _of_ours(names, name, tensor):
            if each in found and not torch.equal(found[each], part):
                raise _refusal(f"the tensor {name}", "other numbers", f"equal to that of {each}")
            found[each] = part
    return found


def _of_ours(names: dict[str, Taken], name: str, tensor: Tensor) -> Iterable[tuple[str, Tensor]]:
    """Return our names for a tensor of theirs, each with its part."""
    for pattern, taken in names.items():
        parts = _parts(pattern, name)
        if parts is not None:
            return _taken(taken, parts, tensor).items()
    raise _refusal("every tensor", name, "one that ours have, too")


def _check_waves(name: str, table: Tensor, positions: nn.Module | None) -> None:
    """Refuse a table of positions that is not the one that ours compute."""
    assert positions is not None
    wanted = positions(torch.zeros(1, *table.shape, dtype=torch.float32)).squeeze(0)
    if not torch.allclose(table.float().cpu(), wanted, atol=_WAVES[table.dtype], rtol=0):
        raise _refusal(f"the table {name}", "other numbers", "sines and cosines of the positions")


def _within(prefix: str, taken: str | Taken) -> Taken:
    plain = Taken((taken,)) if isinstance(taken, str) else taken
    names = tuple(prefix + name for name in plain.names)
    return Taken(names, plain.transposed, plain.flat)


def _parts(pattern: str, name: str) -> tuple[str, ...] | None:
    """Return what the stars of a pattern stand for in a name, or ``None`` if it is another."""
    found = re.fullmatch(re.escape(pattern).replace(r"\*", r"([^.]+)"), name)
    return None if found is None else found.groups()


def _taken(taken: Taken, parts: tuple[str, ...], tensor: Tensor) -> dict[str, Tensor]:
    if taken.transposed and tensor.ndim == 2:
        tensor = tensor.T
    if taken.flat:
        tensor = tensor.flatten()
    fill = partial(reduce, lambda name, part: name.replace("*", part, 1), parts)
    return dict(zip(map(fill, taken.names), tensor.chunk(len(taken.names)), strict=True))


def _load(made: HeadwisePreTrainedModel, found: dict[str, Tensor]) -> None:
    wanted = made.state_dict()
    own = {name: tensor for name, tensor in wanted.items() if ".mechanism." in name}
    for name in sorted((set(wanted) | set(found)) - set(own)):
        theirs, ours = (
            tuple(each[name].shape) if name in each else "none" for each in (found, wanted)
        )
        if theirs != ours:
            raise _refusal(f"the tensor for {name}", theirs, f"{ours}")
    made.load_state_dict({**own, **found})


def _refusal(what: str, found: object, wanted: str) -> ValueError:
    return ValueError(
        f"{_CALLER}: {what} must be {wanted}, got {found!r}\n"
        "  hint: this model has a part that ours do not; headwise.hf.accelerate(model) makes it "
        "faster as it is"
    )
