"""Where tokens stand: what every scheme takes for an offset, and what it refuses."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise import DtypeError, ShapeError
from headwise.positions import Learned, Rotary, Sinusoidal

SCHEMES: list[Callable[[], Any]] = [
    lambda: Rotary(8),
    lambda: Sinusoidal(8),
    lambda: Learned(50, 8, offset=2),
]
on_schemes = pytest.mark.parametrize("make", SCHEMES, ids=["Rotary", "Sinusoidal", "Learned"])


def tokens(scheme: object) -> Tensor:
    return torch.randn(3, 2, 5, 8) if isinstance(scheme, Rotary) else torch.randn(3, 5, 8)


@on_schemes
@pytest.mark.parametrize("given", [1.0, True, None, "3", [0, 1, 2]], ids=str)
def test_an_offset_is_an_int_or_a_tensor(make: Callable[[], Any], given: object) -> None:
    scheme = make()
    with pytest.raises(DtypeError) as refusal:
        scheme(tokens(scheme), given)
    assert str(refusal.value) == (
        f"{type(scheme).__name__}: offset must be an int or a tensor of integers, "
        f"got {type(given).__name__}\n"
        "  hint: one int speaks of all samples, a tensor (batch,) of each of them"
    )


@on_schemes
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_a_tensor_of_offsets_holds_integers(make: Callable[[], Any], dtype: torch.dtype) -> None:
    scheme = make()
    with pytest.raises(DtypeError) as refusal:
        scheme(tokens(scheme), torch.ones(3, dtype=dtype))
    assert str(refusal.value) == (
        f"{type(scheme).__name__}: offset must hold integers, got {dtype}\n"
        "  hint: convert it with offset.long()"
    )


@on_schemes
@pytest.mark.parametrize("shape", [(), (1,), (2,), (3, 1), (3, 5)], ids=str)
def test_a_tensor_of_offsets_has_one_per_sample(
    make: Callable[[], Any], shape: tuple[int, ...]
) -> None:
    scheme = make()
    x, given = tokens(scheme), torch.ones(shape, dtype=torch.long)
    with pytest.raises(ShapeError) as refusal:
        scheme(x, given)
    assert str(refusal.value) == (
        f"{type(scheme).__name__}: offset must hold one integer per sample, (3,)\n"
        f"  x       {tuple(x.shape)} torch.float32 cpu\n"
        f"  offset  {shape} torch.int64 cpu\n"
        "  hint: the samples are the leading dimensions of x; an int speaks of all of them"
    )


@on_schemes
@pytest.mark.parametrize("far", [1 << 60, -(1 << 54)])
def test_an_offset_beyond_all_texts(make: Callable[[], Any], far: int) -> None:
    scheme = make()
    with pytest.raises(ShapeError) as refusal:
        scheme(tokens(scheme), far)
    assert str(refusal.value) == (
        f"{type(scheme).__name__}: offset must lie within ±2**53, got {far}\n"
        "  hint: positions count tokens from the first one of the sequence"
    )


@on_schemes
def test_one_by_one_is_all_at_once(make: Callable[[], Any]) -> None:
    """Each sample alone, and each token alone, as in a batch with padding on the left (K12)."""
    scheme = make()
    x, offsets = tokens(scheme), [0, -2, 7]
    whole = scheme(x, torch.tensor(offsets))
    for sample, offset in enumerate(offsets):
        alone = x[sample : sample + 1]
        torch.testing.assert_close(scheme(alone, offset)[0], whole[sample])
        for token in range(5):
            step = scheme(alone[..., token : token + 1, :], offset + token)
            torch.testing.assert_close(step[0], whole[sample][..., token : token + 1, :])
    assert whole.isfinite().all()
