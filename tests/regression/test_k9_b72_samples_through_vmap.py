"""B72: per-sample gradients through vmap failed for unbatched inputs."""

import pytest
import torch
from torch import Tensor

import headwise as hw
from tests.support.budget import assert_same_bits
from tests.support.paths import Path, on_exact_once
from tests.support.shapes import Sizes, inputs


@on_exact_once
@pytest.mark.parametrize("q_len", [5, 49])
def test_vmap_and_vmap_of_grad_equal_the_loop(path: Path, q_len: int) -> None:
    query, key, value = inputs(Sizes(3, 2, 2, q_len, 67, 8, 8))

    def one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return hw.attend(q, k, v, hw.Causal(), backend=backend)

    def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (one(q, k, v) ** 2).sum()

    every = torch.func.grad(loss, (0, 1, 2))
    with path.taken() as backend:
        looped = torch.stack([one(*parts) for parts in zip(query, key, value, strict=True)])
        assert_same_bits(torch.func.vmap(one)(query, key, value), looped)
        shared = torch.stack([one(part, key[0], value[0]) for part in query])
        found = torch.func.vmap(one, (0, None, None))(query, key[0], value[0])
        torch.testing.assert_close(found, shared)
        batched = torch.func.vmap(every)(query, key, value)
        for number, parts in enumerate(zip(query, key, value, strict=True)):
            for whole, alone in zip(batched, every(*parts), strict=True):
                torch.testing.assert_close(whole[number], alone)


@on_exact_once
def test_dropout_under_vmap_is_refused_or_follows_the_rule(path: Path) -> None:
    query, key, value = inputs(Sizes(3, 2, 1, 5, 7, 8, 8))

    def one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return hw.attend(q, k, v, dropout_p=0.5, backend=backend)

    with path.taken() as backend:
        with pytest.raises(RuntimeError, match="randomness"):
            torch.func.vmap(one)(query, key, value)
        alike = torch.func.vmap(one, randomness="same")(
            *(t[:1].expand_as(t) for t in (query, key, value))
        )
        assert_same_bits(alike[1], alike[0])
        apart = torch.func.vmap(one, randomness="different")(
            *(t[:1].expand_as(t) for t in (query, key, value))
        )
        assert not torch.equal(apart[1], apart[0])
