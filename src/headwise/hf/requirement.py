"""What this package needs and the base install does not bring."""


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
