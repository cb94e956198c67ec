"""What this package needs: transformers, which the base install does not bring, and a model."""

from torch import nn


def require_transformers() -> None:
    """Refuse to go on without transformers.

    Raises:
        ImportError: It is not installed.
    """
    try:
        import transformers  # noqa: F401
    except ImportError as missing:
        raise ImportError(
            f"headwise.hf needs transformers ({missing})\n  hint: pip install 'headwise[hf]'"
        ) from missing


def require_module(caller: str, model: object) -> None:
    """Refuse what is no model.

    Raises:
        TypeError: It is no ``nn.Module``.
    """
    if not isinstance(model, nn.Module):
        got = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise TypeError(
            f"{caller}: model must be a torch.nn.Module, got {got}\n"
            "  hint: of a pipeline it is pipeline.model; transformers' "
            "AutoModel.from_pretrained(name) loads one by its name"
        )
