"""The function mode of one thread, and how many patches want it there."""

from threading import local

import torch
from torch.overrides import TorchFunctionMode

from headwise.patch.stand_in import EarlierNames


class ThreadMode:
    """A mode that lies on the stack of its own thread while patches are on that want it.

    Another thread cannot reach that stack: a mode that nobody wants any more stays there, sends
    no call anywhere, and is taken away by the next patch of its own thread.
    """

    def __init__(self) -> None:
        self.wanted = 0
        self._mode = EarlierNames()

    def settle(self, on: bool) -> None:
        """Put the mode on the stack or take it off, if this is its thread."""
        if _local.mode is not self:
            return
        lies = any(mode is self._mode for mode in _stack())
        if on and self.wanted and not lies:
            torch._C._push_on_torch_function_stack(self._mode)
        elif lies and not (on and self.wanted):
            _take_off(self._mode)


class _Local(local):
    def __init__(self) -> None:
        self.mode = ThreadMode()


_local = _Local()


def of_this_thread() -> ThreadMode:
    """Return the mode of the thread that asks."""
    return _local.mode


def _stack() -> list[TorchFunctionMode]:
    height = torch._C._len_torch_function_stack()
    return [torch._C._get_function_stack_at(place) for place in range(height)]


def _take_off(mode: TorchFunctionMode) -> None:
    """Remove a mode from under others, which keep their order."""
    above: list[TorchFunctionMode] = []
    while (top := torch._C._pop_torch_function_stack()) is not mode:
        above.append(top)
    for other in reversed(above):
        torch._C._push_on_torch_function_stack(other)
