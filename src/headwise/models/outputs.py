"""Outputs as tuples, where ``return_dict=False`` asks for that."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from transformers.utils import generic

Forward = TypeVar("Forward", bound=Callable[..., Any])


def tuple_if_asked(forward: Forward) -> Forward:
    """Let a forward method take ``return_dict=``, as those of transformers do."""
    return cast(Forward, generic.can_return_tuple(forward))  # type: ignore[no-untyped-call]
