"""Which rooms a cache can be asked for, and what is refused."""

import pytest
import torch

import headwise as hw


@pytest.mark.usefixtures("plain_calls")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"capacity": 0}, "capacity must be an int of at least 1 token, got 0"),
        ({"window": 0}, "window must be an int of at least 1 token, got 0"),
        ({"window": 2.5}, "window must be an int of at least 1 token, got 2.5"),
        ({"window": 4, "keep_first": -1}, "keep_first must be an int of at least 0 tokens, got -1"),
        ({"window": 4, "rollback": True}, "rollback must be an int of at least 0 tokens, got True"),
        ({"keep_first": 2}, "keep_first belongs to a window, got keep_first=2 without one"),
        ({"pool": 3}, "pool must be a PagePool, got 3"),
        (
            {"capacity": 3, "window": 4},
            "capacity, window and pool exclude each other, got capacity and window",
        ),
        ({"window": 4, "pool": hw.PagePool()}, "exclude each other, got window and pool"),
        (
            {"dtype": torch.int32},
            "dtype must be torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int8 "
            "or None, got torch.int32",
        ),
        ({"dtype": "int8"}, "got 'int8'"),
    ],
)
def test_arguments_of_nonsense(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(hw.CacheError) as caught:
        hw.KVCache(**arguments)  # type: ignore[arg-type]
    assert said in str(caught.value)
    assert "\n  hint: " in str(caught.value)


def test_a_cache_says_what_it_is() -> None:
    cache = hw.KVCache(window=4, keep_first=1, dtype=torch.int8)
    cache.append(torch.randn(1, 1, 9, 4), torch.randn(1, 1, 9, 4), layer=2)
    assert repr(cache) == (
        "KVCache(window=4, keep_first=1, rollback=16, dtype=torch.int8, lengths={2: 9}, "
        f"{cache.nbytes:,} bytes)"
    )
    assert repr(hw.KVCache(capacity=3)) == "KVCache(capacity=3, lengths={}, 0 bytes)"
    assert repr(hw.PagePool(3)) == "PagePool(3, page=128, used=0, 0 bytes)"


@pytest.mark.usefixtures("plain_calls")
@pytest.mark.parametrize("dtype", [None, torch.int8])
def test_integers_are_no_tokens(dtype: torch.dtype | None) -> None:
    cache = hw.KVCache(dtype=dtype)
    rows = torch.ones(1, 1, 2, 4, dtype=torch.int64)
    with pytest.raises(hw.CacheError, match="must be floating-point tensors, got"):
        cache.append(rows, rows)
    assert cache.length() == 0
