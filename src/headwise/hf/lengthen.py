"""Gives a model with learned positions more of them, as Longformer's authors did."""

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn

from headwise._checks import is_int
from headwise.errors import BackendRefused, ShapeError
from headwise.hf.families import attends_itself
from headwise.hf.linear_layers import own_class
from headwise.hf.requirement import require_module, require_transformers

Model = TypeVar("Model", bound=nn.Module)

# What models call their learned positions, and entries that may say how many there are.
_NAMES = ("position_embeddings", "position_embedding", "wpe", "embed_positions")
_ENTRIES = (
    "max_position_embeddings",
    "max_encoder_position_embeddings",
    "max_decoder_position_embeddings",
    "max_target_positions",
)


class _Positions(NamedTuple):
    """One table of learned positions of text.

    Attributes:
        name: Where it stands in the model.
        table: The table.
        holder: The module that holds it.
        config: The configuration of the model that reads with it.
        reserved: Rows in front that are no positions of tokens.
    """

    name: str
    table: nn.Embedding
    holder: nn.Module
    config: Any
    reserved: int

    @property
    def tokens(self) -> int:
        """How many tokens have a position."""
        return self.table.num_embeddings - self.reserved


def lengthen(model: Model, max_positions: int) -> Model:
    """Let a model with learned positions read more tokens; in place.

    The trained positions are copied over and over (Beltagy et al., 2020, section 5), so that token
    ``n`` starts with what the model learned for token ``n % old``: neighbours stay neighbours,
    but at the seams. Rows that stand for no position, such as the two of RoBERTa, stay in front
    and are copied once. A model lengthened so is a start for training; with full attention its
    cost grows with the square of the length, see ``headwise.hf.convert``.

    The entry of the configuration, ``max_position_embeddings`` in most models, counts reserved
    rows where the model's own does: 4098 for 4096 tokens of RoBERTa. Buffers of position and token
    type numbers grow, too. **The tokenizer is told by you**: ``tokenizer.model_max_length =
    max_positions``; it cuts texts at the old length until then. The table is a new parameter, so
    an optimizer is made afterwards.

    Args:
        model: A model of transformers, or what contains one.
        max_positions: How many tokens it is to read, more than now.

    Returns:
        The same model.

    Raises:
        BackendRefused: A model without a table of learned positions, such as one that turns
            queries and keys or adds sinusoids, or with positions of image patches; or one that
            keeps a mask of all pairs of its tokens, as GPT-Neo does.
        ShapeError: A number of positions that is none, or no more than there are.
        TypeError: Something that is no module.

    Example:
        >>> import headwise as hw
        >>> from transformers import RobertaConfig, RobertaModel
        >>> config = RobertaConfig(
        ...     hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=16,
        ...     max_position_embeddings=34,
        ... )
        >>> model = hw.hf.lengthen(RobertaModel(config), 128)
        >>> model.config.max_position_embeddings
        130
    """
    require_transformers()
    require_module("lengthen", model)
    found = list(_tables(model))
    _check(model, found, max_positions)
    grown: dict[nn.Parameter, nn.Parameter] = {}
    for positions in found:
        if positions.tokens < max_positions:
            _tell(positions, max_positions)
            _grow(positions, max_positions, grown)
    return model


def _tables(model: nn.Module) -> Iterator[_Positions]:
    readers: dict[str, Any] = {}
    for name, module in model.named_modules():
        outer, _, last = name.rpartition(".")
        reader = readers.get(outer)
        readers[name] = module if _reads(module) else reader
        if not isinstance(module, nn.Embedding) or last not in _NAMES or reader is None:
            continue
        if reader.main_input_name != "input_ids" or "inusoid" in type(module).__name__:
            continue
        if getattr(reader.config, "sinusoidal_pos_embds", False):
            continue
        reserved = getattr(module, "offset", None)
        if reserved is None:
            reserved = 0 if module.padding_idx is None else module.padding_idx + 1
        yield _Positions(name, module, model.get_submodule(outer), reader.config, reserved)


def _reads(module: nn.Module) -> bool:
    from transformers import PreTrainedModel

    return isinstance(module, PreTrainedModel)


def _check(model: nn.Module, found: list[_Positions], max_positions: int) -> None:
    if not found:
        raise BackendRefused(
            f"lengthen: {type(model).__name__} has no table of learned positions of text to copy\n"
            "  hint: sinusoids and biases by distance have no last position; rotations are "
            "stretched by rope_parameters in the configuration, and image patches by "
            "interpolate_pos_encoding=True"
        )
    if not is_int(max_positions) or max_positions <= min(each.tokens for each in found):
        counts = " and ".join(f"{each.tokens} ({each.name})" for each in found)
        raise ShapeError(
            "lengthen: max_positions must be an int above the number of tokens that have a "
            f"position, {counts}, got {max_positions!r}\n  hint: shorter texts need no change"
        )
    squares = {(each.tokens, each.tokens) for each in found}
    for name, module in model.named_modules():
        if not attends_itself(own_class(module)):
            continue
        for inner, buffer in module.named_buffers(recurse=False):
            if tuple(buffer.shape[-2:]) in squares:
                raise BackendRefused(
                    f"lengthen: {name} ({own_class(module).__name__}) keeps {inner} "
                    f"{tuple(buffer.shape)}, a mask of its own for as many tokens as now\n"
                    "  hint: build the model anew with the longer configuration, load the other "
                    "weights into it, and copy the rows of its positions"
                )


def _grow(
    positions: _Positions, max_positions: int, grown: dict[nn.Parameter, nn.Parameter]
) -> None:
    """Give a table more rows, or those of another one with which it shares its weight."""
    table, reserved = positions.table, positions.reserved
    weight: Any = table.weight
    if weight not in grown:
        old = weight.detach()
        place = torch.arange(max_positions, device=old.device) % positions.tokens + reserved
        rows = torch.cat([old[:reserved], old[place]])
        grown[weight] = nn.Parameter(rows, requires_grad=weight.requires_grad)
    rows = table.weight = grown[weight]
    table.num_embeddings = rows.shape[0]
    for name, buffer in positions.holder.named_buffers(recurse=False):
        if name in ("position_ids", "token_type_ids"):
            numbers = torch.arange(rows.shape[0], dtype=buffer.dtype, device=buffer.device)
            numbers = numbers if name == "position_ids" else torch.zeros_like(numbers)
            setattr(positions.holder, name, numbers.expand(*buffer.shape[:-1], -1))


def _tell(positions: _Positions, max_positions: int) -> None:
    """Write the number into the configuration, as it counts: with reserved rows or without."""
    counts = (positions.tokens, positions.table.num_embeddings)
    for name in _ENTRIES:
        old = getattr(positions.config, name, None)
        if old in counts:
            setattr(positions.config, name, max_positions + old - positions.tokens)
