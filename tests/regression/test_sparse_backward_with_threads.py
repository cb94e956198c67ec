"""The backward of one head on several threads costs what the pattern keeps."""

import time

import pytest
import torch

import headwise as hw


def _seconds(threads: int, length: int) -> float:
    torch.set_num_threads(threads)
    query, key, value = (torch.randn(1, 1, length, 32, requires_grad=True) for _ in range(3))
    output = hw.attend(query, key, value, hw.Causal() & hw.Window(63, 0), backend="native")
    gradient, best = torch.ones_like(output), float("inf")
    for _ in range(3):
        started = time.perf_counter()
        torch.autograd.grad(output, (query, key, value), gradient, retain_graph=True)
        best = min(best, time.perf_counter() - started)
    return best


@pytest.mark.slow  # it looks at a clock
def test_two_threads_are_not_many_times_slower_than_one() -> None:
    before = torch.get_num_threads()
    try:
        alone, both = _seconds(1, 65_536), _seconds(2, 65_536)
    finally:
        torch.set_num_threads(before)
    assert both < 4 * alone, f"{alone:.3f} s on one thread, {both:.3f} s on two"
