"""Another default dtype or device changes nothing about a call whose tensors are given."""

import torch

import headwise as hw


def test_default_dtype_and_device() -> None:
    query = torch.randn(1, 2, 50, 8)
    patterns = [hw.Causal(), hw.Documents([0] * 20 + [1] * 30), hw.KeyMask([True] * 50)]
    wanted = [hw.attend_with_lse(query, query, query, pattern) for pattern in patterns]
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            fresh = [hw.Causal(), hw.Documents([0] * 20 + [1] * 30), hw.KeyMask([True] * 50)]
            window = hw.Window(3, 1).dense(5, 5)
            found = [hw.attend_with_lse(query, query, query, pattern) for pattern in fresh]
    finally:
        torch.set_default_dtype(torch.float32)
    assert window.device.type == "cpu"
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one.output, other.output)
        assert torch.equal(one.lse, other.lse)
