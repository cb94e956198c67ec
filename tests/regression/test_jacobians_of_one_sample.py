"""``jacrev`` maps over the rows of the gradient, and all of them read one output."""

import pytest
import torch
from torch.func import jacrev, vmap

import headwise as hw
from tests.support.budget import assert_within_budget


@pytest.mark.parametrize("leading", [(), (1,), (2,)])
def test_the_jacobian_of_a_call(leading: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    query, key = torch.randn(*leading, 3, 5, 8), torch.randn(*leading, 3, 7, 8)

    def attended(query: torch.Tensor, key: torch.Tensor, backend: str) -> torch.Tensor:
        return hw.attend(query, key, key, hw.Window(2, 1), backend=backend)

    found = jacrev(attended)(query, key, "native")
    plain = jacrev(attended)(query, key, "reference")
    exact = jacrev(attended)(query.double(), key.double(), "reference")
    assert_within_budget(found, exact=exact, plain=plain, label=str(leading))


def test_jacobians_of_mapped_samples() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 7, 8)
    found = vmap(jacrev(lambda q, k: hw.attend(q, k, k)))(query, key)
    alone = [jacrev(lambda q, k: hw.attend(q, k, k))(*one) for one in zip(query, key, strict=True)]
    torch.testing.assert_close(found, torch.stack(alone))
