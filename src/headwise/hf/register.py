"""Makes ``attn_implementation="headwise"`` known to transformers."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any

from headwise.hf.conversion.saved import (
    implementation_for,
    let_wait,
    recorded,
    refuse_other_attention,
)
from headwise.hf.families import refuse_own_attention
from headwise.hf.requirement import require_transformers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_NAME = "headwise"
_DONE = "_headwise_refuses_own_attention"
_checks: ContextVar[bool] = ContextVar("_checks", default=True)


def register() -> None:
    """Let transformers models be loaded with ``attn_implementation="headwise"``.

    Registers the attention function and the mask function under that name, and has transformers
    refuse the name for models that attend by their own code, in whole or in part, and so would
    never ask for it; ``headwise.hf.accelerate`` serves many of these. Calling it again changes
    nothing; models with other names are not touched.

    Example:
        >>> import headwise as hw
        >>> from transformers import AutoModel, BertConfig
        >>> hw.hf.register()
        >>> config = BertConfig(
        ...     hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=16
        ... )
        >>> model = AutoModel.from_config(config, attn_implementation="headwise")
    """
    require_transformers()
    from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

    from headwise.hf.attention import attention
    from headwise.hf.prepare import mask

    AttentionInterface.register(_NAME, attention)
    AttentionMaskInterface.register(_NAME, mask)
    if not getattr(PreTrainedModel, _DONE, False):
        _guard(PreTrainedModel)
        setattr(PreTrainedModel, _DONE, True)


@contextmanager
def own_attention_known() -> Iterator[None]:
    """Let the name be chosen for models whose attention of their own somebody has looked at."""
    before = _checks.set(False)
    try:
        yield
    finally:
        _checks.reset(before)


def _guard(model_class: "type[PreTrainedModel]") -> None:
    """Check a model wherever its attention is chosen; have files say what was converted."""
    choose = model_class.get_correct_attn_implementation
    change = model_class.set_attn_implementation
    finish, save = model_class.post_init, model_class.save_pretrained

    @wraps(choose)
    def choose_checked(
        self: "PreTrainedModel", requested_attention: str | None, is_init_check: bool = False
    ) -> str:
        requested = implementation_for(self, requested_attention)
        if requested == _NAME and _checks.get():
            refuse_own_attention(type(self))
        return choose(self, requested, is_init_check)

    @wraps(change)
    def change_checked(
        self: "PreTrainedModel",
        attn_implementation: "str | dict[str, str]",
        allow_all_kernels: bool = False,
    ) -> None:
        names = attn_implementation
        whole = names == _NAME or (isinstance(names, dict) and names.get("") == _NAME)
        if not whole:
            refuse_other_attention(self, names)
        elif _checks.get():
            for part in self.modules():
                if isinstance(part, model_class):
                    refuse_own_attention(type(part))
        change(self, attn_implementation, allow_all_kernels)

    @wraps(finish)
    def finish_waiting(self: "PreTrainedModel") -> None:
        finish(self)  # type: ignore[no-untyped-call]
        let_wait(self)

    @wraps(save)
    def save_recorded(self: "PreTrainedModel", *args: Any, **named: Any) -> None:
        with recorded(self):
            save(self, *args, **named)

    model_class.get_correct_attn_implementation = choose_checked  # type: ignore[method-assign]
    model_class.set_attn_implementation = change_checked  # type: ignore[method-assign]
    model_class.post_init = finish_waiting  # type: ignore[method-assign]
    model_class.save_pretrained = save_recorded  # type: ignore[method-assign]
