"""A tensor whose sign torch keeps apart is read with its sign."""

import torch

import headwise as hw


def test_lazy_sign_in_bias_and_query() -> None:
    lazy = torch.randn(1, 1, 5, 5, dtype=torch.complex64).conj().imag
    assert lazy.is_neg()
    query, key, value = torch.randn(3, 1, 1, 5, 1).unbind(0)
    late = lazy[..., :1]
    for q, bias in ((query, lazy), (late, None)):
        found = hw.attend(q, key, value, bias=bias, backend="native")
        wanted = hw.attend(q, key, value, bias=bias, backend="reference")
        torch.testing.assert_close(found, wanted)
