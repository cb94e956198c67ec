"""Makes the Auto classes of transformers know the models."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
)

from headwise.models.classifier import HeadwiseForSequenceClassification
from headwise.models.configuration import HeadwiseConfig
from headwise.models.heads import (
    HeadwiseForCausalLM,
    HeadwiseForMaskedLM,
    HeadwiseForSeq2SeqLM,
)
from headwise.models.transformer import HeadwiseModel

_CLASSES = {
    AutoModel: HeadwiseModel,
    AutoModelForCausalLM: HeadwiseForCausalLM,
    AutoModelForMaskedLM: HeadwiseForMaskedLM,
    AutoModelForSeq2SeqLM: HeadwiseForSeq2SeqLM,
    AutoModelForSequenceClassification: HeadwiseForSequenceClassification,
}


def register() -> None:
    """Let ``AutoConfig`` and the Auto classes of transformers load models of headwise.

    Saved models then load by ``AutoModelForCausalLM.from_pretrained(folder)`` and its sisters, and
    pipelines and ``Trainer`` know what they are. Calling it again changes nothing. Without it,
    ``headwise.models.HeadwiseForCausalLM.from_pretrained(folder)`` does the same.

    Example:
        >>> import headwise as hw
        >>> from transformers import AutoModelForMaskedLM
        >>> hw.models.register()
        >>> config = hw.models.linformer(vocab_size=50, d_model=16, num_heads=2, num_layers=1)
        >>> type(AutoModelForMaskedLM.from_config(config)).__name__
        'HeadwiseForMaskedLM'
    """
    AutoConfig.register(HeadwiseConfig.model_type, HeadwiseConfig, exist_ok=True)
    for auto, model in _CLASSES.items():
        auto.register(HeadwiseConfig, model, exist_ok=True)
