"""Makes ``attn_implementation="headwise"`` known to transformers."""

from functools import wraps
from typing import TYPE_CHECKING

from headwise.hf.families import refuse_own_attention
from headwise.hf.requirement import require_transformers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_NAME = "headwise"
_DONE = "_headwise_refuses_own_attention"


def register() -> None:
    """Let transformers models be loaded with ``attn_implementation="headwise"``.

    Registers the attention function and the mask function under that name, and has transformers
    refuse the name for models that attend by their own code and would never ask for it. Calling
    it again changes nothing; models with other names are not touched.

    Example:
        >>> import headwise as hw
        >>> from transformers import AutoModel, BertConfig
        >>> hw.hf.register()
        >>> model = AutoModel.from_config(BertConfig(), attn_implementation="headwise")
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


def _guard(model_class: "type[PreTrainedModel]") -> None:
    """Check the class of a model wherever its attention implementation is chosen."""
    choose = model_class.get_correct_attn_implementation
    change = model_class.set_attn_implementation

    @wraps(choose)
    def choose_checked(
        self: "PreTrainedModel", requested_attention: str | None, is_init_check: bool = False
    ) -> str:
        if requested_attention == _NAME:
            refuse_own_attention(type(self))
        return choose(self, requested_attention, is_init_check)

    @wraps(change)
    def change_checked(
        self: "PreTrainedModel",
        attn_implementation: "str | dict[str, str]",
        allow_all_kernels: bool = False,
    ) -> None:
        names = attn_implementation
        if names == _NAME or (isinstance(names, dict) and names.get("") == _NAME):
            for part in self.modules():
                if isinstance(part, model_class):
                    refuse_own_attention(type(part))
        change(self, attn_implementation, allow_all_kernels)

    model_class.get_correct_attn_implementation = choose_checked  # type: ignore[method-assign]
    model_class.set_attn_implementation = change_checked  # type: ignore[method-assign]
