"""Whether slow paths are errors: for the whole process, or for a block of code."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from headwise._settings import strict_by_default

_asked: ContextVar[bool | None] = ContextVar("headwise_strict", default=None)


@contextmanager
def strict(on: bool = True) -> Iterator[None]:
    """Make every slow path an error while the block runs, in this thread or task alone.

    A path is slow where ``backend="auto"`` would take anything but the fast backend of the
    device: ``native`` on the CPU, ``flex`` on CUDA, ``sdpa`` on others; for linear attention,
    ``native`` on the CPU. Where nothing is computed, on the meta device, none is slow. A backend
    that is named in the call is what was asked for and never an error, and ``attention_weights``
    has one way only.

    Under ``torch.compile`` the error comes when the call is traced. Put the block around the call
    of the compiled function; inside a function compiled with ``fullgraph=True`` torch refuses it.

    Args:
        on: ``False`` takes slow paths again inside the block, also where ``HEADWISE_STRICT=1``
            made them errors.

    Raises:
        BackendRefused: Inside the block, a call that would take a slow path; the message says
            which one, and every reason why the fast one will not do.

    Example:
        >>> import torch, headwise as hw
        >>> q = torch.ones(1, 1, 3, 8, dtype=torch.float64)
        >>> with hw.strict():
        ...     hw.attend(q, q, q)
        Traceback (most recent call last):
        headwise.errors.BackendRefused: attend: strict mode takes only the fast backend, 'native', \
and 'sdpa' would be used
          native: it computes float32, bfloat16 and float16, and the tensors are torch.float64
          hint: make the call one that 'native' takes, or name backend='sdpa' in it; strict mode \
is set by HEADWISE_STRICT=1 or headwise.strict(), and headwise.strict(False) lifts it
    """
    if not isinstance(on, bool):
        raise TypeError(
            f"strict: on must be True or False, got {on!r}\n  hint: strict() switches it on"
        )
    token = _asked.set(on)
    try:
        yield
    finally:
        _asked.reset(token)


def __getattr__(name: str) -> bool:
    """Answer ``_strict.here``: whether slow paths are errors in this thread or task.

    An attribute, for a compiler cannot follow a ``ContextVar``, but asks for the attributes that a
    graph was made for whenever the graph is called.
    """
    if name != "here":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    asked = _asked.get()
    return strict_by_default() if asked is None else asked
