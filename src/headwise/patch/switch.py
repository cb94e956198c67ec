"""The switch by which calls of torch's ``scaled_dot_product_attention`` are taken."""

from os import register_at_fork
from threading import RLock
from types import TracebackType

from headwise.patch.places import check_places, fill_places
from headwise.patch.state import State
from headwise.patch.thread_mode import ThreadMode, of_this_thread


class sdpa:
    """Let ``headwise.attend`` compute ``torch.nn.functional.scaled_dot_product_attention``.

    The patch is on from the call, for the whole process, until the switch is undone: by
    ``undo()``, or by the end of a ``with`` block. Of several switches the last one that is not
    undone decides, in whatever order they are undone; ``sdpa(False)`` is one that says off.

    Arguments, results and errors of a call stay those of torch: ``is_causal`` counts from the
    upper left, ``True`` in a mask means "may attend", a float mask is added. Calls are found by
    attribute (``F.scaled_dot_product_attention``, ``torch._C._nn.…``) in every thread, under
    ``torch.compile`` and ``torch.export``; by names that were imported before
    (``from torch.nn.functional import scaled_dot_product_attention``), in the thread of the switch.

    Torch computes these itself, as before; ``headwise.patch.explain`` says so for any one call:

    - tensors that are not on the CPU (meta included), or not float32, bfloat16 or float16;
      nested and sparse tensors, and classes of tensors of others;
    - wrong arguments, so that errors are torch's; a size of zero; ``attn_mask`` with
      ``is_causal``; a scale or ``dropout_p`` given as a tensor; keys and values whose head counts
      differ from each other and from 1;
    - calls inside ``sdpa_kernel``, or under flags of ``torch.backends.cuda``, that leave torch
      only one of its two ways on the CPU, FLASH and MATH;
    - forward-mode derivatives, ``torch.func.functionalize``, transforms of ``torch.func`` that
      derive twice or stand inside ``torch.compile``, ``torch.jit`` and ``torch.fx.symbolic_trace``.

    Not found are programs exported while the patch was off, and the fast paths in C++ of
    ``nn.MultiheadAttention`` and ``nn.TransformerEncoderLayer`` in ``eval()``, which never call
    the function (``headwise.hf.accelerate`` serves them). Outside ``torch.compile`` torch leaves
    these fast paths wherever a function mode is active, so in the thread of a switch with
    ``earlier_names`` calls are found there, too.

    What differs: dropout draws other numbers, from the same generator. Derivatives of derivatives
    and gradients in batches are made in plain torch, at the cost of torch's MATH, and refused
    where the call ran under a transform of ``torch.func``, a dispatch mode or ``torch.compile``.
    The result may not be changed in place before its gradient is taken, as with torch's FLASH.

    Args:
        enabled: ``False`` switches off until this switch is undone.
        earlier_names: Whether names imported before are served in this thread. They are found by
            a ``TorchFunctionMode``, which costs about a microsecond at each call of a torch
            function; ``False`` spares it.

    Raises:
        RuntimeError: Somebody else has replaced the function in torch; or a switch that was
            undone is entered again.
        TypeError: ``enabled`` or ``earlier_names`` is not a bool.

    Example:
        >>> import torch, headwise as hw
        >>> from torch.nn import functional as F
        >>> q = torch.ones(1, 2, 3, 8)
        >>> with hw.patch.sdpa():
        ...     F.scaled_dot_product_attention(q, q, q, is_causal=True).shape
        torch.Size([1, 2, 3, 8])
    """

    def __init__(self, enabled: bool = True, *, earlier_names: bool = True) -> None:
        for name, flag in (("enabled", enabled), ("earlier_names", earlier_names)):
            if not isinstance(flag, bool):
                raise TypeError(
                    f"patch.sdpa: {name} must be True or False, got {type(flag).__name__}\n"
                    "  hint: the patch is for the whole process; patch.sdpa() switches it on"
                )
        self.enabled = enabled
        self._mode = of_this_thread() if enabled and earlier_names else None
        with _Switches.lock:
            if enabled:
                check_places()
            _Switches.live.append(self)
            _want(self._mode, 1)
            _settle(self._mode)

    def undo(self) -> None:
        """Take this switch back; a second time does nothing."""
        with _Switches.lock:
            if self not in _Switches.live:
                return
            _Switches.live.remove(self)
            _want(self._mode, -1)
            _settle(self._mode)

    def __enter__(self) -> "sdpa":
        if self not in _Switches.live:
            raise RuntimeError(
                "patch.sdpa: this switch has been undone\n"
                "  hint: each switch serves once; call patch.sdpa() again"
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.undo()

    def __repr__(self) -> str:
        undone = "" if self in _Switches.live else ", undone"
        return f"<headwise.patch.sdpa({self.enabled}){undone}>"


class _Switches:
    lock = RLock()
    live: list[sdpa] = []  # noqa: RUF012


# A child must not wait for a thread that it has not.
register_at_fork(
    before=_Switches.lock.acquire,
    after_in_parent=_Switches.lock.release,
    after_in_child=_Switches.lock.release,
)


def _want(mode: ThreadMode | None, more: int) -> None:
    if mode is not None:
        mode.wanted += more


def _settle(mode: ThreadMode | None) -> None:
    """Make everything what the last switch says."""
    State.on = bool(_Switches.live) and _Switches.live[-1].enabled
    fill_places(State.on)
    for each in {mode, of_this_thread()}:
        if each is not None:
            each.settle(State.on)
