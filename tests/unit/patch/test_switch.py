"""The switch: when calls are taken, by which names, in which threads, and what it leaves behind."""

import copy
import os
import pickle
import re
import signal
from collections.abc import Generator, Iterator
from threading import Event, Thread
from time import sleep
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention as early
from torch.overrides import TorchFunctionMode

import headwise as hw
from headwise.ops import tally
from headwise.patch.switch import _Switches

Q = torch.randn(1, 2, 3, 8)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    assert functional.scaled_dot_product_attention is early
    assert torch._C._nn.scaled_dot_product_attention is early
    assert torch._C._len_torch_function_stack() == 0
    assert ran(early) == 0


def ran(call: Any) -> int:
    """Return how many calls headwise computes."""
    with tally() as counted:
        call(Q, Q, Q)
    return counted["native"]


def attribute(*given: Any) -> Tensor:
    return functional.scaled_dot_product_attention(*given)


def hidden(*given: Any) -> Tensor:
    return torch._C._nn.scaled_dot_product_attention(*given)


NAMES = (attribute, hidden, early)


@pytest.mark.parametrize("call", NAMES)
def test_on_from_the_call_to_undo(call: Any) -> None:
    switch = hw.patch.sdpa()
    assert ran(call) == 1
    assert repr(switch) == "<headwise.patch.sdpa(True)>"
    switch.undo()
    assert ran(call) == 0
    assert repr(switch) == "<headwise.patch.sdpa(True), undone>"
    switch.undo()


@pytest.mark.parametrize("call", NAMES)
def test_the_last_switch_decides(call: Any) -> None:
    with hw.patch.sdpa():
        with hw.patch.sdpa(False):
            assert ran(call) == 0
            assert functional.scaled_dot_product_attention is early
            with hw.patch.sdpa():
                assert ran(call) == 1
        assert ran(call) == 1


@pytest.mark.parametrize("call", NAMES)
def test_switches_are_undone_in_any_order(call: Any) -> None:
    first, off, last = hw.patch.sdpa(), hw.patch.sdpa(False), hw.patch.sdpa()
    first.undo()
    assert ran(call) == 1
    last.undo()
    assert ran(call) == 0
    off.undo()
    assert ran(call) == 0


def test_without_earlier_names() -> None:
    with hw.patch.sdpa(earlier_names=False):
        assert [ran(call) for call in NAMES] == [1, 1, 0]
        assert torch._C._len_torch_function_stack() == 0
        with hw.patch.sdpa():
            assert ran(early) == 1
        assert [ran(call) for call in NAMES] == [1, 1, 0]


def test_an_exception_ends_it() -> None:
    with pytest.raises(KeyError), hw.patch.sdpa():
        raise KeyError


def test_generators_end_theirs_in_any_order() -> None:
    def patched() -> Generator[int]:
        with hw.patch.sdpa():
            yield ran(early)
            yield ran(attribute)

    first, second = patched(), patched()
    assert [next(first), next(second), next(first)] == [1, 1, 1]
    first.close()
    assert next(second) == 1
    second.close()


def test_a_switch_serves_once() -> None:
    with hw.patch.sdpa() as switch:
        pass
    with pytest.raises(RuntimeError, match=r"patch.sdpa: this switch has been undone\n  hint: "):
        switch.__enter__()


def test_what_is_no_switch() -> None:
    with pytest.raises(TypeError, match=r"enabled must be True or False, got Linear\n  hint: "):
        hw.patch.sdpa(torch.nn.Linear(2, 2))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"earlier_names must be True or False, got int\n  hint: "):
        hw.patch.sdpa(earlier_names=0)  # type: ignore[arg-type]


def test_threads_are_served_by_attribute() -> None:
    found: list[int] = []

    def run() -> None:
        found.extend(ran(call) for call in NAMES)
        with hw.patch.sdpa():
            found.append(ran(early))

    with hw.patch.sdpa():
        thread = Thread(target=run)
        thread.start()
        thread.join()
    assert found == [1, 1, 0, 1]


def test_undone_from_another_thread() -> None:
    """The mode stays where no other thread can reach it, does nothing, and goes later."""
    switch = hw.patch.sdpa()
    thread = Thread(target=switch.undo)
    thread.start()
    thread.join()
    assert ran(early) == 0
    assert torch._C._len_torch_function_stack() == 1
    hw.patch.sdpa(False).undo()
    assert torch._C._len_torch_function_stack() == 0


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_waits_for_a_thread_that_switches() -> None:
    """The child would wait forever, for a thread that it has not."""
    held = Event()

    def hold() -> None:
        with _Switches.lock:
            held.set()
            sleep(0.05)

    thread = Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        hw.patch.sdpa().undo()
        os._exit(0)
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


class Seen(TorchFunctionMode):
    """A mode of others, which notes the attention that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.count += func is functional.scaled_dot_product_attention
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("call", NAMES)
def test_modes_of_others_see_the_call_once(call: Any) -> None:
    with Seen() as below, hw.patch.sdpa(), Seen() as above, torch.device("cpu"):
        assert ran(call) == 1
    assert below.count == above.count == 1


def test_a_mode_in_between_stays_when_ours_goes() -> None:
    switch = hw.patch.sdpa()
    with Seen() as seen:
        switch.undo()
        assert torch._C._get_function_stack_at(0) is seen
        early(Q, Q, Q)
    assert seen.count == 1


def test_a_patch_of_others_below_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(functional, "scaled_dot_product_attention", attribute)
        wanted = re.escape(
            "patch.sdpa: torch.nn.functional.scaled_dot_product_attention is not torch's own "
            f"function but {attribute!r}\n  hint: take that patch back first"
        )
        with pytest.raises(RuntimeError, match=wanted):
            hw.patch.sdpa()


def test_a_patch_of_others_above_stays() -> None:
    switch = hw.patch.sdpa()
    ours = functional.scaled_dot_product_attention

    def others(*given: Any) -> Tensor:
        return ours(*given)

    functional.scaled_dot_product_attention = others  # type: ignore[assignment]
    assert ran(attribute) == 1
    switch.undo()
    assert functional.scaled_dot_product_attention is others
    assert ran(attribute) == 0
    functional.scaled_dot_product_attention = early


def test_the_function_travels() -> None:
    with hw.patch.sdpa():
        ours = functional.scaled_dot_product_attention
        assert ours.__name__ == early.__name__
        assert copy.deepcopy(ours) is ours
        assert pickle.loads(pickle.dumps(ours)) is ours
    assert ran(ours) == 0


class Scripted(torch.nn.Module):
    """Calls the function in the one way that a script can."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(x, x, x)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_scripts_and_symbolic_traces_hold_torchs_function() -> None:
    module = Scripted()
    with hw.patch.sdpa():
        script = torch.jit.script(module)
        traced = fx.symbolic_trace(module)
    after = torch.jit.script(module)
    assert early in {node.target for node in traced.graph.nodes}
    for made in (script, traced, after):
        assert ran(lambda *given, made=made: made(given[0])) == 0
        torch.testing.assert_close(made(Q), module(Q))
