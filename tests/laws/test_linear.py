"""Linear attention: all forms agree, and what a row sees is all that counts."""

from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import headwise as hw
from headwise.ops.linear import chunked
from tests.support.budget import assert_same_bits, assert_within_budget
from tests.support.linear import (
    EVERY_FORM,
    FORMS,
    LinearCase,
    WithGain,
    assert_near,
    features,
    gradients,
    linear_cases,
    parts,
    spelled,
)

MAPS = ("elu", "relu", "squared_relu", "softmax")


def tensors(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return [torch.randn(shape, dtype=torch.float64).to(dtype) for shape in shapes]


@given(case=linear_cases())
def test_forms_agree_with_gradients(case: LinearCase) -> None:
    exact = case.attended("reference")
    wanted = gradients(case, exact)
    for form in ("chunked", "recurrent"):
        found = case.attended(form)
        for number, (a, b) in enumerate(zip(parts(found), parts(exact), strict=True)):
            assert_near(a, b, f"{form}, part {number}")
        assert_near(found.state.log_scale, exact.state.log_scale, f"{form}, scale")
        for number, (a, b) in enumerate(zip(gradients(case, found), wanted, strict=True)):
            assert_near(a, b, f"{form}, gradient {number}")


@pytest.mark.parametrize("kv_len", [128, 257])
@pytest.mark.parametrize("feature_map", ["elu", WithGain()], ids=["elu", "gain"])
def test_whole_chunks_and_the_rest_of_one(feature_map: Any, kv_len: int) -> None:
    query, key, value = (
        x.requires_grad_() for x in tensors((1, 4, 200, 3), (1, 2, kv_len, 3), (1, 2, kv_len, 5))
    )
    decay = torch.tensor([0.8, 0.99], dtype=torch.float64, requires_grad=True)
    keywords = {"feature_map": feature_map, "causal": True, "decay": decay}
    leaves = (query, key, value, decay)
    case = LinearCase(query, key, value, keywords, leaves, chunked.CHUNK)
    exact, found = case.attended("reference"), case.attended("chunked")
    pairs = zip(
        (*parts(found), *gradients(case, found)),
        (*parts(exact), *gradients(case, exact)),
        strict=True,
    )
    for number, (a, b) in enumerate(pairs):
        assert_near(a, b, f"{number}")


@pytest.mark.parametrize(
    ("form", "dtype"),
    [
        *product(FORMS, [torch.float64]),
        *product(EVERY_FORM, [torch.float32, torch.bfloat16, torch.float16]),
    ],
    ids=str,
)
@pytest.mark.parametrize("feature_map", MAPS)
@pytest.mark.parametrize(("causal", "decay"), [(False, None), (True, None), (True, 0.8)])
def test_the_formula_within_the_budget(
    form: str, feature_map: str, causal: bool, decay: float | None, dtype: torch.dtype
) -> None:
    query, key, value = tensors((2, 4, 131, 5), (2, 2, 131, 5), (2, 2, 131, 7), dtype=dtype)
    real = torch.rand(2, 131) > 0.3
    visible = real[:, None, None] & (torch.ones(131, 131).tril() > 0 if causal else True)
    found = hw.linear_attend(
        query,
        key,
        value,
        feature_map=feature_map,
        causal=causal,
        decay=decay,
        kv_mask=real,
        backend=form,
    )
    exact, plain = (
        spelled(
            features(feature_map, query.to(kind)),
            features(feature_map, key.to(kind)),
            value,
            visible=visible,
            decay=1.0 if decay is None else decay,
            dtype=kind,
        )
        for kind in (torch.float64, dtype)
    )
    assert found.output.dtype == dtype
    assert_within_budget(found.output, exact=exact, plain=plain, label=f"{form} {feature_map}")


@pytest.mark.parametrize("form", EVERY_FORM)
@pytest.mark.parametrize("feature_map", ["elu", WithGain()], ids=["elu", "gain"])
def test_the_future_changes_no_bit(form: str, feature_map: Any) -> None:
    query, key, value = tensors((1, 4, 200, 3), (1, 2, 200, 3), (1, 2, 200, 5), dtype=torch.float32)

    def ran(key: Tensor, value: Tensor) -> Tensor:
        return hw.linear_attend(
            query, key, value, feature_map=feature_map, causal=True, decay=0.9, backend=form
        ).output[:, :, :140]

    usual = ran(key, value)
    for odd in (float("nan"), float("inf"), 1e30):
        other_key, other_value = key.clone(), value.clone()
        other_value[:, :, 140:] = odd
        assert_same_bits(ran(key, other_value), usual, f"values {odd}")
        other_key[:, 0, 140:] = odd if odd != 1e30 else 60.0
        assert_same_bits(ran(other_key, value), usual, f"keys {odd}")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("causal", [True, False])
def test_a_number_that_is_not_finite_is_seen_by_those_who_see_it(form: str, causal: bool) -> None:
    query, key, value = tensors((1, 2, 9, 3), (1, 2, 9, 3), (1, 2, 9, 5))
    key[0, 0, 4, 1], value[0, 1, 6, 2], query[0, 1, 3, 0] = float("nan"), float("inf"), float("nan")
    leaves = [x.requires_grad_() for x in (query, key, value)]
    found = hw.linear_attend(*leaves, feature_map="elu", causal=causal, backend=form)
    lost = torch.zeros(1, 2, 9, 5, dtype=torch.bool)
    lost[:, 0, 4 if causal else 0 :] = True
    lost[:, 1, 6 if causal else 0 :, 2] = True
    lost[:, 1, 3] = True
    assert torch.equal(found.output.isnan(), lost)
    assert torch.equal((~found.state.sums.isfinite()).any(-2), lost[:, :, -1])
    if causal:
        gradients_ = torch.autograd.grad(found.output[:, 0, :4].sum(), leaves)
        assert all(bool(gradient[:, 0, :4].isfinite().all()) for gradient in gradients_)
        assert all(bool((gradient[:, 0, 5:] == 0).all()) for gradient in gradients_)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("feature_map", ["elu", WithGain()], ids=["elu", "gain"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_any_side_is_not_there(
    form: str, feature_map: Any, causal: bool, side: str
) -> None:
    sizes = (5, 150, 90)
    query, key, value = tensors((3, 4, 150, 3), (3, 2, 150, 3), (3, 2, 150, 5))
    places = torch.arange(150)
    lengths = torch.tensor(sizes).unsqueeze(1)
    real = places >= 150 - lengths if side == "left" else places < lengths
    for padded in (key, value):
        padded[~real[:, None].expand(-1, 2, -1)] = float("nan")
    leaves = [x.requires_grad_() for x in (query, key, value)]
    decay = 0.99 if causal else None
    found = hw.linear_attend(
        *leaves, feature_map=feature_map, causal=causal, kv_mask=real, decay=decay, backend=form
    ).output
    for sample in range(3):
        alone = [x[sample : sample + 1, :, real[sample]] for x in leaves]
        wanted = hw.linear_attend(
            *alone, feature_map=feature_map, causal=causal, decay=decay, backend=form
        ).output
        assert_near(found[sample, :, real[sample]], wanted[0], f"sample {sample}")
    assert all(
        bool(gradient.isfinite().all()) for gradient in torch.autograd.grad(found.sum(), leaves)
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("feature_map", ["elu", WithGain()], ids=["elu", "gain"])
@pytest.mark.parametrize("causal", [True, False])
def test_who_sees_nothing_gets_zeros(form: str, feature_map: Any, causal: bool) -> None:
    leaves = [x.requires_grad_() for x in tensors((2, 2, 6, 3), (2, 2, 4, 3), (2, 2, 4, 5))]
    real = torch.tensor([[False, True, True, True], [False] * 4])
    found = hw.linear_attend(
        *leaves, feature_map=feature_map, causal=causal, kv_mask=real, backend=form
    ).output
    seen = torch.ones(2, 6, dtype=torch.bool)
    seen[0, : 3 if causal else 0] = False
    seen[1] = False
    assert torch.equal((found != 0).any(-1).any(1), seen)
    assert all(
        bool(gradient.isfinite().all()) for gradient in torch.autograd.grad(found.sum(), leaves)
    )


@pytest.mark.parametrize("form", EVERY_FORM)
@pytest.mark.parametrize(
    "shapes",
    [
        ((0, 4, 3, 2), (0, 2, 3, 2), (0, 2, 3, 5)),
        ((2, 0, 3, 2), (2, 0, 3, 2), (2, 0, 3, 5)),
        ((2, 4, 0, 2), (2, 2, 3, 2), (2, 2, 3, 5)),
        ((2, 4, 3, 2), (2, 2, 0, 2), (2, 2, 0, 5)),
        ((2, 4, 0, 2), (2, 2, 0, 2), (2, 2, 0, 5)),
        ((2, 4, 3, 0), (2, 2, 3, 0), (2, 2, 3, 5)),
        ((2, 4, 3, 2), (2, 2, 3, 2), (2, 2, 3, 0)),
    ],
    ids=["batch", "heads", "queries", "keys", "tokens", "head_dim", "value_dim"],
)
@pytest.mark.parametrize("causal", [True, False])
def test_empty_sizes(form: str, shapes: tuple[tuple[int, ...], ...], causal: bool) -> None:
    leaves = [x.requires_grad_() for x in tensors(*shapes, dtype=torch.float32)]
    found = hw.linear_attend(*leaves, feature_map="elu", causal=causal, backend=form)
    assert found.output.shape == (*shapes[0][:3], shapes[2][3])
    (_, kv_heads, kv_len, width), value_dim = shapes[1], shapes[2][3]
    assert found.state.sums.shape == (shapes[0][0], kv_heads, width, value_dim)
    assert found.output.isfinite().all()
    if kv_len == 0 or width == 0:
        assert not found.output.any()
    found.output.sum().backward()  # type: ignore[no-untyped-call]
    assert all(x.grad is not None and x.grad.shape == x.shape for x in leaves)


@pytest.mark.parametrize("form", FORMS)
def test_leading_dimensions_and_one_sample(form: str) -> None:
    query, key, value = tensors((2, 3, 4, 7, 3), (2, 3, 2, 7, 3), (2, 3, 2, 7, 5))
    real = torch.rand(2, 3, 7) > 0.3
    kept: dict[str, Any] = {"feature_map": "elu", "causal": True, "backend": form}
    found = hw.linear_attend(query, key, value, kv_mask=real, **kept)
    assert found.state.sums.shape == (2, 3, 2, 3, 5)
    flat = hw.linear_attend(query, key, value, kv_mask=real.flatten(0, 1), **kept)
    assert_same_bits(found.output, flat.output)
    one = hw.linear_attend(query[1, 2], key[1, 2], value[1, 2], kv_mask=real[1, 2], **kept)
    assert one.output.shape == (4, 7, 5)
    assert one.state.log_scale.shape == (2,)
    assert_near(one.output, found.output[1, 2])
    then = hw.linear_attend(query, key, value, state=found.state, **kept)
    assert_near(
        hw.linear_attend(query[1, 2], key[1, 2], value[1, 2], state=one.state, **kept).output,
        then.output[1, 2],
    )


@given(case=linear_cases(state=False), data=st.data())
def test_weights_give_the_output(case: LinearCase, data: st.DataObject) -> None:
    rows = data.draw(st.none() | st.just([-1]) if case.query.shape[2] else st.none())
    heads = data.draw(st.none() | st.just([0, -1]))
    weights = hw.linear_attention_weights(
        case.query, case.key, rows=rows, heads=heads, **case.keywords
    )
    value = case.value.repeat_interleave(case.query.shape[1] // case.key.shape[1], 1)
    if case.keywords.get("kv_mask") is not None:
        value = value.masked_fill(~case.keywords["kv_mask"][:, None, :, None], 0)
    wanted = case.attended("chunked").output
    value, wanted = (t if heads is None else t[:, heads] for t in (value, wanted))
    assert_near(weights @ value, wanted if rows is None else wanted[:, :, rows])


def test_any_strides_and_grouped_heads() -> None:
    query, key, value = tensors((2, 9, 4, 3), (2, 9, 2, 3), (2, 9, 2, 5))
    views = [x.transpose(1, 2) for x in (query, key, value)]
    for form in FORMS:
        found = hw.linear_attend(*views, feature_map="elu", causal=True, backend=form).output
        repeated = [views[0], *(x.repeat_interleave(2, 1) for x in views[1:])]
        apart = hw.linear_attend(*repeated, feature_map="elu", causal=True, backend=form).output
        assert_near(found, apart)


def test_transforms_and_second_derivatives() -> None:
    query, key, value = tensors((1, 2, 3, 2), (1, 1, 3, 2), (1, 1, 3, 1))
    decay = torch.tensor([0.7], dtype=torch.float64)

    def ran(query: Tensor, key: Tensor, value: Tensor, decay: Tensor) -> Tensor:
        return hw.linear_attend(
            query, key, value, feature_map="elu", causal=True, decay=decay, backend="chunked"
        ).output

    leaves = [x.clone().requires_grad_() for x in (query, key, value, decay)]
    assert torch.autograd.gradcheck(ran, leaves)
    assert torch.autograd.gradgradcheck(ran, leaves)
    query, key, value = tensors((2, 2, 4, 3), (2, 1, 4, 3), (2, 1, 4, 2))
    by_sample = torch.vmap(ran, in_dims=(0, 0, 0, None))(query, key, value, decay)
    assert_near(by_sample, ran(query, key, value, decay))


@pytest.mark.parametrize("form", EVERY_FORM)
@pytest.mark.parametrize("causal", [True, False])
def test_a_token_whose_square_is_too_large_is_no_padding(form: str, causal: bool) -> None:
    query, key, value = tensors(*[(1, 1, 9, 8)] * 3, dtype=torch.float32)
    key[0, 0, 4] = 1e20
    found = hw.linear_attend(
        query, key, value, feature_map=hw.nn.RandomFeatures(16), causal=causal, backend=form
    ).output
    assert torch.equal(found.isnan().all(-1)[0, 0], torch.arange(9) >= (4 if causal else 0))
