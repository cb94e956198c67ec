"""Which backend is fast for a call, and what strict mode says of the others."""

from headwise.errors import BackendRefused
from headwise.ops.softmax.call import Call

# The backend that is as fast as it gets on a kind of device; elsewhere that is sdpa.
_FAST = {"cpu": "native", "cuda": "flex"}


def fast_backend(call: Call) -> str:
    """Name the fast backend of the device that a call is on."""
    return _FAST.get(call.query.device.type, "sdpa")


def is_slow(call: Call, backend: str) -> bool:
    """Say whether a backend is not the fast one for a call; on meta, where nothing runs, none."""
    return backend != fast_backend(call) and not call.query.is_meta


def refuse_slow(caller: str, fast: str, slow: str, reasons: list[str]) -> BackendRefused:
    """Word the refusal of a slow path, with all reasons why the fast backend will not do."""
    lines = "\n".join(f"  {fast}: {reason}" for reason in reasons)
    return BackendRefused(
        f"{caller}: strict mode takes only the fast backend, {fast!r}, and {slow!r} would be used\n"
        f"{lines}\n"
        f"  hint: make the call one that {fast!r} takes, or name backend={slow!r} in it; strict "
        "mode is set by HEADWISE_STRICT=1 or headwise.strict(), and headwise.strict(False) lifts it"
    )
