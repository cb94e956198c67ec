"""The one tolerance rule of the suite."""

import torch
from torch import Tensor

SLACK = 2.0
FLOOR_STEPS = 4.0


def largest_error(actual: Tensor, exact: Tensor) -> float:
    """Return the largest absolute difference over the finite entries, in float64.

    Shapes must be the same, and so must the entries that are infinite or NaN.
    """
    assert actual.shape == exact.shape, f"shapes {tuple(actual.shape)} and {tuple(exact.shape)}"
    found, wanted = actual.detach().double(), exact.detach().double()
    ordinary = wanted.isfinite()
    torch.testing.assert_close(found[~ordinary], wanted[~ordinary], rtol=0, atol=0, equal_nan=True)
    differences = (found - wanted)[ordinary].abs()
    return differences.max().item() if differences.numel() else 0.0


def assert_within_budget(actual: Tensor, *, exact: Tensor, plain: Tensor, label: str) -> None:
    """Let ``actual`` be at most ``SLACK`` times as wrong as the same formula in plain PyTorch.

    Args:
        actual: What is under test.
        exact: The answer in float64.
        plain: The formula written out in the dtype under test. Where it happens to be exact, a few
            rounding steps of the largest number are still allowed.
        label: What to call the case in a failure.
    """
    usual = exact.detach()[exact.isfinite()].abs()
    size = max(1.0, usual.max().item() if usual.numel() else 0.0)
    floor = FLOOR_STEPS * torch.finfo(plain.dtype).eps * size
    allowed = SLACK * max(largest_error(plain, exact), floor)
    found = largest_error(actual, exact)
    assert found <= allowed, f"{label}: error {found:.3e} exceeds the budget {allowed:.3e}"


def assert_same_bits(actual: Tensor, expected: Tensor, label: str = "") -> None:
    """Demand the same shape, dtype and bits."""
    assert actual.dtype == expected.dtype, label
    assert actual.shape == expected.shape, label
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[actual.element_size()]
    a, b = actual.detach().contiguous(), expected.detach().contiguous()
    different = a.view(integers) != b.view(integers)
    worst = (a - b)[different].abs().max().item() if different.any() else 0.0
    assert not different.any(), f"{label}: {int(different.sum())} entries differ, by up to {worst}"
