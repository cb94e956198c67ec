"""``Rotary``: numbers by hand, where tokens stand, and that it stays as it is inside a model."""

import copy
import math
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from headwise.positions import Rotary
from tests.support.budget import assert_same_bits

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
FORMS: list[dict[str, Any]] = [
    {},
    {"interleaved": True},
    {"rotary_dim": 4},
    {"rotary_dim": 4, "interleaved": True},
    {"scaling": YARN, "base": 500.0},
]
on_forms = pytest.mark.parametrize("form", FORMS, ids=str)


def test_a_quarter_of_a_turn_by_hand() -> None:
    """Base 16 and 4 columns: frequencies 1 and 1/4, so position 2π turns by 0 and by a quarter."""
    rotary = Rotary(4, base=16.0)
    assert rotary.inv_freq.tolist() == [1.0, 0.25]
    row = torch.tensor([[[1.0, 10.0, 2.0, 20.0]]], dtype=torch.float64)
    cos, sin = math.cos(3), math.sin(3)
    slow_cos, slow_sin = math.cos(0.75), math.sin(0.75)
    wanted = [
        1 * cos - 2 * sin,
        10 * slow_cos - 20 * slow_sin,
        2 * cos + 1 * sin,
        20 * slow_cos + 10 * slow_sin,
    ]
    torch.testing.assert_close(rotary(row, 3)[0, 0].tolist(), wanted)
    neighbours = [
        1 * cos - 10 * sin,
        10 * cos + 1 * sin,
        2 * slow_cos - 20 * slow_sin,
        20 * slow_cos + 2 * slow_sin,
    ]
    torch.testing.assert_close(Rotary(4, 16.0, interleaved=True)(row, 3)[0, 0].tolist(), neighbours)


@on_forms
def test_position_0_changes_nothing_but_the_size(form: dict[str, Any]) -> None:
    rotary, x = Rotary(8, **form), torch.randn(2, 3, 1, 8)
    torch.testing.assert_close(rotary(x), x * rotary.attention_factor)


@pytest.mark.parametrize("interleaved", [False, True])
def test_columns_past_rotary_dim_are_left_as_they_are(interleaved: bool) -> None:
    rotary = Rotary(7, rotary_dim=4, interleaved=interleaved)
    for length in (3, 3000):
        x = torch.randn(2, 3, length, 7)
        x[..., 4:] = float("inf")
        found = rotary(x, 9)
        assert_same_bits(found[..., 4:], x[..., 4:])
        torch.testing.assert_close(
            found[..., :4], Rotary(4, interleaved=interleaved)(x[..., :4].clone(), 9)
        )


@on_forms
def test_each_sample_stands_where_its_offset_says(form: dict[str, Any]) -> None:
    rotary, x = Rotary(8, **form), torch.randn(3, 2, 5, 8)
    found = rotary(x, torch.tensor([0, 7, -4]))
    for sample, offset in enumerate((0, 7, -4)):
        assert_same_bits(found[sample], rotary(x[sample], offset))
    assert_same_bits(found, rotary(x, torch.tensor([0, 7, -4], dtype=torch.int32)))


def test_samples_may_have_several_dimensions_or_none() -> None:
    rotary, x = Rotary(8), torch.randn(2, 3, 4, 5, 8)
    offsets = torch.arange(6) * 2
    found = rotary(x, offsets)
    assert_same_bits(found, rotary(x.flatten(0, 1), offsets).view(x.shape))
    assert_same_bits(rotary(x[0, 0], torch.tensor([6])), rotary(x[0, 0], 6))


@on_forms
def test_a_part_of_a_text_is_turned_as_in_the_whole(form: dict[str, Any]) -> None:
    rotary, x = Rotary(8, **form), torch.randn(2, 2, 40, 8)
    whole = rotary(x, 3)
    parts = [rotary(x[:, :, :11], 3), rotary(x[:, :, 11:12], 14), rotary(x[:, :, 12:], 15)]
    torch.testing.assert_close(torch.cat(parts, 2), whole)


@on_forms
def test_strides_do_not_matter(form: dict[str, Any]) -> None:
    rotary = Rotary(8, **form)
    for length in (5, 700):
        x = torch.randn(2, length, 3, 9)[..., 1:].transpose(1, 2)
        torch.testing.assert_close(rotary(x), rotary(x.contiguous()))
        last = torch.randn(2, 3, 8, length).transpose(2, 3)
        torch.testing.assert_close(rotary(last), rotary(last.contiguous()))


@on_forms
@pytest.mark.parametrize("shape", [(0, 2, 3), (2, 0, 3), (2, 2, 0)], ids=str)
def test_sizes_of_0(form: dict[str, Any], shape: tuple[int, ...]) -> None:
    rotary = Rotary(8, **form)
    for offset in (4, torch.ones(shape[0], dtype=torch.long)):
        x = torch.randn(*shape, 8, requires_grad=True)
        found = rotary(x, offset)
        assert found.shape == x.shape
        (gradient,) = torch.autograd.grad(found.sum(), x)
        assert gradient.shape == x.shape


@on_forms
def test_it_says_what_it_is(form: dict[str, Any]) -> None:
    rotary = Rotary(8, **form)
    again = eval(repr(rotary))
    assert repr(again) == repr(rotary)
    x = torch.randn(1, 2, 9, 8)
    assert_same_bits(again(x, 5), rotary(x, 5))


def test_its_scaling_cannot_be_changed() -> None:
    given: dict[str, Any] = dict(YARN)
    rotary = Rotary(8, scaling=given)
    given["factor"] = 9.0
    assert rotary.scaling == YARN
    with pytest.raises(TypeError):
        rotary.scaling["factor"] = 9.0  # type: ignore[index]
    assert Rotary(8).scaling is None
    assert Rotary(8, scaling={"rope_type": "default", "rope_theta": 10000.0}).scaling is None


def test_nothing_of_it_is_state_and_no_move_changes_it() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(2, 2), Rotary(8, scaling=YARN))
    assert list(model.state_dict()) == ["0.weight", "0.bias"]
    assert not [*model[1].parameters(), *model[1].buffers()]
    x = torch.randn(1, 2, 9, 8)
    wanted = Rotary(8, scaling=YARN)(x, 100_000)
    for moved in (
        model.to_empty(device="cpu"),
        model.to(torch.bfloat16),
        model.half(),
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
    ):
        assert_same_bits(moved[1](x, 100_000), wanted)


def test_copies_and_pickles_leave_the_numbers_behind() -> None:
    rotary = Rotary(64)
    small = len(pickle.dumps(rotary))
    rotary(torch.randn(1, 1, 4096, 64))
    assert len(pickle.dumps(rotary)) == small


def test_on_the_meta_device() -> None:
    found = Rotary(8)(torch.empty(2, 3, 5, 8, device="meta"), 4)
    assert found.is_meta
    assert found.shape == (2, 3, 5, 8)


def test_dtypes_stay() -> None:
    x = torch.randn(1, 2, 5, 8, dtype=torch.float64)
    exact = Rotary(8)(x, 1000)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        low = x.to(dtype)
        found = Rotary(8)(low, 1000)
        assert found.dtype == dtype
        again = Rotary(8)(low.float(), 1000).to(dtype)
        assert_same_bits(found, again)
        assert (found.double() - exact).abs().max() < 8 * torch.finfo(dtype).eps


def test_after_inference_mode_it_can_be_trained_with() -> None:
    rotary = Rotary(26)
    with torch.inference_mode():
        rotary(torch.randn(1, 2, 9, 26))
    x = torch.randn(1, 2, 9, 26, requires_grad=True)
    assert torch.autograd.grad(rotary(x).sum(), x)[0].isfinite().all()
