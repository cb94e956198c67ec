"""K17, B113: merging as a + log(1 + exp(b - a)) overflows, and is NaN for closed rows."""

import pytest
import torch

import headwise as hw

INF = float("inf")


def test_parts_far_apart_and_closed_ones() -> None:
    cases = {(0.0, 100.0): 100.0, (-INF, -INF): -INF, (-INF, 3.0): 3.0, (88.0, -1e30): 88.0}
    first, second = torch.tensor(list(cases)).view(1, 1, -1, 2).unbind(-1)
    ones = torch.ones(1, 1, len(cases), 1)
    merged = hw.merge([hw.Attended(ones, first), hw.Attended(3 * ones, second)])
    assert merged.lse.flatten().tolist() == list(cases.values())
    assert merged.output.flatten().tolist() == [3.0, 0.0, 3.0, 1.0]


def test_no_part_turns_gradients_nan() -> None:
    outputs = torch.randn(2, 1, 1, 3, 4)
    lses = torch.tensor([[0.0, -INF, -INF], [1.0, 2.0, -INF]]).view(2, 1, 1, 3).requires_grad_()
    merged = hw.merge([hw.Attended(o, lse) for o, lse in zip(outputs, lses, strict=True)])
    loss = merged.output.sum() + merged.lse[..., :2].sum()
    assert torch.autograd.grad(loss, lses)[0].isfinite().all()


def test_any_sequence_of_pairs_and_no_part_without_weight() -> None:
    nan = torch.full((1, 1, 1, 2), float("nan"))
    closed = torch.full((1, 1, 1), -INF)
    open_ = hw.Attended(torch.ones(1, 1, 1, 2), torch.zeros(1, 1, 1))
    merged = hw.merge(part for part in (hw.Attended(nan, closed), open_))
    assert merged.output.flatten().tolist() == [1.0, 1.0]
    wide = hw.merge([hw.Attended(torch.ones(1, 1, 1, 2), closed.double())])
    assert wide.lse.dtype == torch.float64
    with pytest.raises(hw.ShapeError, match="at least one result"):
        hw.merge([])
