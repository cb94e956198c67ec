"""What is no model, or no answer to a question of yes or no, is refused by every function."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from torch import nn

import headwise as hw
from headwise import hf

CALLS: dict[str, Callable[[Any], object]] = {
    "accelerate": hf.accelerate,
    "convert": partial(hf.convert, mechanism=hw.Window(1, 1)),
    "lengthen": partial(hf.lengthen, max_positions=99),
    "report": hf.report,
    "restore": hf.restore,
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    ("model", "got"), [(None, "NoneType"), ("bert", "str"), (nn.Linear, "the class Linear")]
)
def test_what_is_no_model(name: str, model: Any, got: str) -> None:
    with pytest.raises(
        TypeError,
        match=rf"^{name}: model must be a torch\.nn\.Module, got {got}\n  hint: of a pipeline it "
        r"is pipeline\.model; transformers' AutoModel\.from_pretrained\(name\) loads one by its na",
    ):
        CALLS[name](model)


@pytest.mark.parametrize("unpad", [None, 1, "right"])
def test_unpad_is_true_or_false(unpad: Any) -> None:
    with pytest.raises(
        TypeError,
        match=rf"^accelerate: unpad must be True or False, got {unpad!r}\n  hint: which tokens are "
        "padding says attention_mask, in each call$",
    ):
        hf.accelerate(nn.Linear(2, 2), unpad=unpad)
