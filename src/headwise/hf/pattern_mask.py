"""A pattern that travels through transformers as a mask tensor, and is never added to scores."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from typing_extensions import override

from headwise.errors import BackendRefused
from headwise.patterns import Pattern
from headwise.patterns.wording import pattern_name

# Operations that mean the same for a boolean mask, True = may attend, whoever calls them.
_BOOLEAN = frozenset(
    (
        "_local_scalar_dense",
        "_reshape_alias",
        "_unsafe_view",
        "all",
        "any",
        "as_strided",
        "bitwise_and",
        "bitwise_not",
        "bitwise_or",
        "cat",
        "clone",
        "constant_pad_nd",
        "eq",
        "expand",
        "gather",
        "index",
        "index_select",
        "is_same_size",
        "logical_and",
        "logical_not",
        "logical_or",
        "masked_fill",
        "masked_fill_",
        "ne",
        "permute",
        "repeat",
        "scatter",
        "select",
        "slice",
        "slice_scatter",
        "split",
        "split_with_sizes",
        "squeeze",
        "stack",
        "t",
        "transpose",
        "unbind",
        "unsqueeze",
        "view",
        "where",
    )
)
_SAME = frozenset(("alias", "detach", "lift_fresh"))


class PatternMask(Tensor):
    """Stands for the boolean mask (batch, 1, q_len, kv_len) that ``pattern`` means.

    It holds no elements. transformers hands it from the mask function to the attention function
    and asks for its shape on the way. Slicing, joining and other boolean operations spell it out
    as an ordinary tensor; arithmetic, which would let a boolean mask change scores by 0 and 1, is
    refused.
    """

    pattern: Pattern
    q_offset: int
    kv_offset: int
    note: str | None
    model: str

    @staticmethod
    def __new__(
        cls: "type[PatternMask]",
        pattern: Pattern,
        size: Sequence[int],
        q_offset: int,
        kv_offset: int,
        device: torch.device,
        note: str | None,
        model: str,
    ) -> "PatternMask":
        """Build the mask of one call.

        Args:
            cls: This class.
            pattern: Who may attend to whom.
            size: batch, number of queries, number of keys.
            q_offset: Absolute position of the first query.
            kv_offset: Absolute position of the first key.
            device: Where the model computes.
            note: What a report should say of this mask, if anything.
            model: Which model asked for it.
        """
        batch, q_len, kv_len = size
        made: PatternMask = Tensor._make_wrapper_subclass(
            cls, (batch, 1, q_len, kv_len), dtype=torch.bool, device=device
        )
        made.pattern, made.q_offset, made.kv_offset = pattern, q_offset, kv_offset
        made.note, made.model = note, model
        return made

    def spelled(self) -> Tensor:
        """Return the boolean tensor that this mask stands for, ``True`` = may attend."""
        _, _, q_len, kv_len = self.shape
        allowed = self.pattern.dense(q_len, kv_len, self.q_offset, self.kv_offset)
        return allowed.to(self.device).expand(self.shape)

    @override
    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        return f"PatternMask({pattern_name(self.pattern)}, {tuple(self.shape)})"

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: OpOverload,
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        """Answer one torch operation: as it is, spelled out, or refused."""
        del types
        kwargs = dict(kwargs or {})
        name = func.overloadpacket.__name__
        first = args[0] if args else None
        if isinstance(first, PatternMask) and name in _SAME:
            return first._moved(first.device)
        if isinstance(first, PatternMask) and name == "_to_copy":
            if kwargs.get("dtype") in (None, torch.bool):
                return first._moved(kwargs.get("device") or first.device)
        elif name in _BOOLEAN:
            return func(
                *(_spelled(part) for part in args), **{key: _spelled(kwargs[key]) for key in kwargs}
            )
        raise BackendRefused(
            f"attn_implementation='headwise': {_model(args)} uses its attention mask in its own "
            f"{name!r}, got a mask of booleans\n"
            "  hint: this part of the model attends by its own code; load it with "
            "attn_implementation='eager' or 'sdpa'. headwise.hf.report(model) lists such parts"
        )

    def _moved(self, device: torch.device) -> "PatternMask":
        size = (self.shape[0], *self.shape[2:])
        return PatternMask(
            self.pattern, size, self.q_offset, self.kv_offset, device, self.note, self.model
        )


def _spelled(argument: object) -> object:
    if isinstance(argument, PatternMask):
        return argument.spelled()
    if isinstance(argument, (list, tuple)):
        return type(argument)(_spelled(part) for part in argument)
    return argument


def _model(args: Sequence[object]) -> str:
    return next((part.model for part in args if isinstance(part, PatternMask)), "the model")
