"""The module of random features: seeds, what is saved, where it goes, what is refused."""

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import headwise as hw
from headwise.nn import LinearAttention, RandomFeatures
from tests.support.budget import assert_same_bits


def directions(made: RandomFeatures) -> Tensor:
    assert made.projection is not None
    return made.projection


def test_the_seed_decides_and_nothing_else_does() -> None:
    torch.manual_seed(1)
    first = RandomFeatures(9, 4, seed=3)
    ahead = torch.rand(())
    torch.manual_seed(1)
    assert_same_bits(torch.rand(()), ahead)
    torch.manual_seed(2)
    assert_same_bits(directions(RandomFeatures(9, 4, seed=3)), directions(first))
    assert (directions(RandomFeatures(9, 4, seed=4)) != directions(first)).all()


def test_redrawing_follows_a_sequence_that_the_seed_decides() -> None:
    made, again = (RandomFeatures(9, 4, seed=3) for _ in range(2))
    seen = [directions(made).clone()]
    for _ in range(3):
        made.redraw()
        again.redraw()
        assert_same_bits(directions(again), directions(made))
        assert all((directions(made) != before).all() for before in seen)
        seen.append(directions(made).clone())
    made.redraw(seed=3)
    assert_same_bits(directions(made), seen[0])
    assert made.seed == 3
    made.redraw()
    assert_same_bits(directions(made), seen[1])


def test_neighbouring_seeds_have_sequences_of_their_own() -> None:
    first, second = RandomFeatures(9, 4, seed=0), RandomFeatures(9, 4, seed=1)
    first.redraw()
    assert (directions(first) != directions(second)).all()


def test_redrawing_in_the_middle_of_a_step_is_noticed() -> None:
    made, x = RandomFeatures(9, 4), torch.randn(3, 4, requires_grad=True)
    output = made(x).sum()
    made.redraw()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.backward()


def test_redrawing_before_the_width_is_known() -> None:
    made, wanted = RandomFeatures(9), RandomFeatures(9, 4)
    made.redraw()
    wanted.redraw()
    made(torch.randn(3, 4))
    assert_same_bits(directions(made), directions(wanted))


def test_the_first_input_decides_the_width() -> None:
    made, wanted = RandomFeatures(9, seed=2), RandomFeatures(9, 4, seed=2)
    assert made.head_dim is None
    x = torch.randn(2, 3, 4)
    with torch.inference_mode():
        made(x)
    assert made.head_dim == 4
    assert_same_bits(directions(made), directions(wanted))
    y = x.clone().requires_grad_()
    made(y).sum().backward()
    assert y.grad is not None


def test_a_layer_decides_the_width() -> None:
    made = RandomFeatures(9)
    made.fit(head_dim=4, kv_heads=2)
    assert_same_bits(directions(made), directions(RandomFeatures(9, 4)))
    made.fit(head_dim=4)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("assign", [True, False])
def test_saved_and_loaded(known: bool, assign: bool) -> None:
    made = RandomFeatures(9, 4, seed=7)
    made.redraw()
    assert sorted(made.state_dict()) == ["projection", "seed"]
    file = io.BytesIO()
    torch.save(made.state_dict(), file)
    file.seek(0)
    twin = RandomFeatures(9, 4 if known else None)
    twin.load_state_dict(torch.load(file), assign=assign)
    for _ in range(2):
        assert_same_bits(directions(twin), directions(made))
        x = torch.randn(3, 4)
        assert_same_bits(twin(x), made(x))
        twin.redraw()
        made.redraw()


def test_loading_inside_a_model() -> None:
    def model(width: int | None) -> torch.nn.Module:
        return torch.nn.ModuleDict({"map": RandomFeatures(9, width, seed=width or 0)})

    made, twin = model(4), model(None)
    twin.load_state_dict(made.state_dict())
    assert_same_bits(twin.state_dict()["map.projection"], made.state_dict()["map.projection"])


@pytest.mark.parametrize("twin", [RandomFeatures(8, 4), RandomFeatures(8), RandomFeatures(9, 5)])
def test_other_sizes_are_not_loaded(twin: RandomFeatures) -> None:
    with pytest.raises(RuntimeError, match="size mismatch for projection"):
        twin.load_state_dict(RandomFeatures(9, 4).state_dict())


def test_copies_go_their_own_way() -> None:
    made = RandomFeatures(9, 4)
    twin = copy.deepcopy(made)
    twin.redraw()
    assert_same_bits(directions(made), directions(RandomFeatures(9, 4)))


@pytest.mark.parametrize(
    "moved", [torch.nn.Module.bfloat16, torch.nn.Module.half, torch.nn.Module.double]
)
def test_conversions_leave_the_directions_alone(
    moved: Callable[[torch.nn.Module], torch.nn.Module],
) -> None:
    made = RandomFeatures(9, 4)
    moved(torch.nn.Sequential(made))
    assert_same_bits(directions(made), directions(RandomFeatures(9, 4)))


def test_torchs_default_dtype_leaves_the_directions_alone() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        made = RandomFeatures(9, 4)
    finally:
        torch.set_default_dtype(torch.float32)
    assert_same_bits(directions(made), directions(RandomFeatures(9, 4)))


def test_the_meta_device() -> None:
    made = RandomFeatures(9, 4, device="meta")
    assert made(torch.randn(2, 4, device="meta")).shape == (2, 9)
    with torch.device("meta"):
        assert directions(RandomFeatures(9, 4)).is_meta


@pytest.mark.parametrize("width", [None, 4])
@pytest.mark.parametrize("around", [lambda made: made, LinearAttention])
def test_a_layer_made_on_the_meta_device(width: int | None, around: Any) -> None:
    with torch.device("meta"):
        made = RandomFeatures(9, width, seed=3)
        layer = hw.MultiHeadAttention(16, 4, mechanism=around(made))
    made.redraw()
    wanted = RandomFeatures(9, 4, seed=3)
    wanted.redraw()
    assert repr(made) == repr(wanted)
    layer.to_empty(device="cpu")
    assert_same_bits(directions(made), directions(wanted))
    assert_same_bits(made.seed, wanted.seed)


def test_parameters_are_reset_in_memory_that_holds_something_else() -> None:
    made, wanted = RandomFeatures(9, 4, seed=3), RandomFeatures(9, 4, seed=3)
    for buffer in made.buffers():
        buffer.fill_(7)
    made.reset_parameters()
    assert_same_bits(directions(made), directions(wanted))
    assert_same_bits(made.seed, wanted.seed)


def test_a_seed_that_was_loaded_on_the_meta_device_is_known() -> None:
    source = RandomFeatures(9, 4, seed=5)
    made = RandomFeatures(9, 4, device="meta")
    made.load_state_dict(source.state_dict(), assign=True)
    made.to("meta").to_empty(device="cpu")
    assert_same_bits(directions(made), directions(source))


def test_narrow_directions_are_not_kept_narrow() -> None:
    made = RandomFeatures(9, 4)
    narrow = {n: b.bfloat16() if n == "projection" else b for n, b in made.state_dict().items()}
    made.load_state_dict(narrow, assign=True)
    assert directions(made).dtype == torch.float32
    made(torch.randn(3, 4))


@pytest.mark.parametrize("kernel", ["softmax", "hyperbolic", "relu"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_inputs_are_rounded_once(kernel: str, dtype: torch.dtype) -> None:
    made = RandomFeatures(10, 4, kernel=kernel)
    x = torch.randn(3, 5, 4).to(dtype)
    for is_query in (True, False):
        found = made.features(x, is_query=is_query, normalize=True)
        wide = made.features(x.float(), is_query=is_query, normalize=True)
        # The constant that keeps features above 0 is another one in float16.
        least = 2.0**-24 if dtype == torch.float16 and kernel != "relu" else 0.0
        assert_same_bits(found.values, (wide.values + least).to(dtype))
        if found.log_gain is not None and wide.log_gain is not None:
            assert_same_bits(found.log_gain, wide.log_gain)


def test_autocast_is_kept_out() -> None:
    made, x = RandomFeatures(10, 4), torch.randn(3, 5, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert_same_bits(made(x), made(x).float())
        found = made(x)
    assert_same_bits(found, made(x))


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("kernel", ["softmax", "hyperbolic", "relu"])
def test_gradients_and_transforms(kernel: str) -> None:
    made = RandomFeatures(6, 4, kernel=kernel)
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(made, x, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(made, x)

    def keys(x: Tensor) -> Tensor:
        found = made.features(x, is_query=False, normalize=True)
        gain = 1.0 if found.log_gain is None else found.log_gain.exp().unsqueeze(-1)
        return (found.values * gain).square().sum()

    rows = torch.vmap(torch.func.grad(keys))(x)
    (whole,) = torch.autograd.grad(keys(x), x)
    torch.testing.assert_close(rows, whole)


@pytest.mark.parametrize("kernel", ["softmax", "hyperbolic", "relu"])
def test_compiled(kernel: str) -> None:
    made = RandomFeatures(6, 4, kernel=kernel)

    def rule(x: Tensor) -> Any:
        return tuple(
            made.features(x, is_query=is_query, normalize=True) for is_query in (True, False)
        )

    x = torch.randn(3, 4)
    compiled = torch.compile(rule, backend="aot_eager", fullgraph=True)
    for found, wanted in zip(compiled(x), rule(x), strict=True):
        torch.testing.assert_close(tuple(found), tuple(wanted))


def test_it_says_what_it_is() -> None:
    assert repr(RandomFeatures(8)) == ("RandomFeatures(8, head_dim=None, orthogonal=True, seed=0)")
    assert repr(RandomFeatures(8, 4, seed=2, scale=0.5, kernel="relu", orthogonal=False)) == (
        "RandomFeatures(8, head_dim=4, orthogonal=False, seed=2, scale=0.5, kernel='relu')"
    )
