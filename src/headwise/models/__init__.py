"""One Transformer as classes of transformers, with any attention that headwise has.

Needs the extra ``hf``. ``register()`` makes the Auto classes of transformers know the models.
"""

try:
    import transformers  # noqa: F401
except ImportError as missing:
    raise ImportError(
        f"headwise.models needs transformers ({missing})\n  hint: pip install 'headwise[hf]'"
    ) from missing

from headwise.models.cache import Cache
from headwise.models.classifier import HeadwiseForSequenceClassification
from headwise.models.configuration import HeadwiseConfig
from headwise.models.from_transformers import from_transformers
from headwise.models.heads import (
    HeadwiseForCausalLM,
    HeadwiseForMaskedLM,
    HeadwiseForSeq2SeqLM,
)
from headwise.models.presets import (
    bert,
    bigbird,
    encoder_decoder,
    gpt,
    linformer,
    llama,
    longformer,
    performer,
)
from headwise.models.register import register
from headwise.models.transformer import HeadwiseModel

__all__ = [
    "Cache",
    "HeadwiseConfig",
    "HeadwiseForCausalLM",
    "HeadwiseForMaskedLM",
    "HeadwiseForSeq2SeqLM",
    "HeadwiseForSequenceClassification",
    "HeadwiseModel",
    "bert",
    "bigbird",
    "encoder_decoder",
    "from_transformers",
    "gpt",
    "linformer",
    "llama",
    "longformer",
    "performer",
    "register",
]
