"""Strict mode and compiled functions: the error comes when the call is traced."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import headwise as hw
from tests.support.shapes import inputs

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


@pytest.fixture(autouse=True)
def _forgetful() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return hw.attend(query, key, value, hw.Causal())


def inside(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    with hw.strict():
        return causal(query, key, value)


def test_a_slow_path_is_an_error_of_tracing() -> None:
    wide = inputs(dtype=torch.float64)
    compiled = torch.compile(causal, backend="eager")
    expected = compiled(*wide)
    for _ in range(2):
        with hw.strict():
            with pytest.raises(hw.BackendRefused, match="and 'reference' would be used"):
                compiled(*wide)
            with hw.strict(False):
                assert torch.equal(compiled(*wide), expected)
    assert torch.equal(compiled(*wide), expected)


def test_no_graph_is_made_of_a_slow_path() -> None:
    compiled = torch.compile(causal, backend="eager", fullgraph=True)
    with hw.strict(), pytest.raises(torch._dynamo.exc.Unsupported, match="BackendRefused"):
        compiled(*inputs(dtype=torch.float64))


def test_fast_paths_need_no_second_graph() -> None:
    given = inputs()
    compiled = torch.compile(causal, backend="eager", fullgraph=True)
    expected = compiled(*given)
    with hw.strict(), torch.compiler.set_stance("fail_on_recompile"):
        assert torch.equal(compiled(*given), expected)


def test_a_block_inside_a_compiled_function() -> None:
    compiled = torch.compile(inside, backend="eager")
    with pytest.raises(hw.BackendRefused, match="and 'reference' would be used"):
        compiled(*inputs(dtype=torch.float64))
    given = inputs()
    assert torch.equal(compiled(*given), causal(*given))


def test_other_threads_and_tasks_keep_their_own_answer() -> None:
    wide = inputs(dtype=torch.float64)
    compiled = torch.compile(causal, backend="eager")

    def refused() -> bool:
        try:
            compiled(*wide)
        except hw.BackendRefused:
            return True
        return False

    async def turns(on: bool, rounds: int) -> list[bool]:
        found = []
        with hw.strict(on):
            for _ in range(rounds):
                await asyncio.sleep(0)
                found.append(refused())
        return found

    async def both() -> list[list[bool]]:
        return list(await asyncio.gather(turns(True, 2), turns(False, 3), turns(True, 4)))

    assert not refused()
    assert asyncio.run(both()) == [[True] * 2, [False] * 3, [True] * 4]
    assert not refused()
    with hw.strict():
        thread = threading.Thread(target=lambda: found.append(refused()))
        found: list[bool] = []
        thread.start()
        thread.join()
        assert refused()
    assert found == [False]
