"""How position objects are settled into a call, and what is refused."""

import pytest
import torch
from torch import Tensor

import headwise as hw
from headwise import DtypeError, ShapeError
from headwise.ops.softmax.call import Call
from headwise.ops.softmax.settle import Extras, settle
from headwise.patterns.grid import Offset
from headwise.positions import Alibi, RelativeBias
from tests.support.shapes import Inputs, Sizes, inputs

SIZES = Sizes(2, 3, 2, 5, 7, 4, 4)


def settled(
    given: Inputs,
    bias: Tensor | Alibi | RelativeBias,
    q_offset: Offset | None = None,
    kv_offset: Offset = 0,
) -> Call:
    extras = Extras(bias, None, None, None, 0.0, q_offset, kv_offset)
    return settle("attend", *given, None, extras, False)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str
)
def test_numbers_are_as_wide_as_the_sums(dtype: torch.dtype) -> None:
    wide = torch.promote_types(dtype, torch.float32)
    for weight in (torch.bfloat16, torch.float32, torch.float64):
        call = settled(inputs(SIZES, dtype=dtype), RelativeBias(6, dtype=weight))
        assert call.bias is None
        assert call.slopes is None
        assert call.distances is not None
        assert call.distances.table.dtype == wide
        assert call.distances.table.is_contiguous()
    call = settled(inputs(SIZES, dtype=dtype), Alibi(6))
    assert (call.bias, call.distances) == (None, None)
    assert call.slopes is not None
    assert call.slopes.dtype == wide
    assert torch.equal(call.slopes, Alibi(6).slopes.to(wide))


@pytest.mark.parametrize(
    ("q_offset", "kv_offset", "lowest", "highest"),
    [
        (None, 0, -4, 6),
        (0, 0, -6, 4),
        (10, 3, 1, 11),
        (torch.tensor([0, 9]), 0, -6, 13),
        (None, torch.tensor([5, 8]), -4, 6),
        ([2, 0], [0, 30], -36, 6),
    ],
)
def test_the_table_holds_every_distance_and_no_more(
    q_offset: Offset | None, kv_offset: Offset, lowest: int, highest: int
) -> None:
    bias = RelativeBias(6)
    found = settled(inputs(SIZES), bias, q_offset, kv_offset).distances
    assert found is not None
    assert found.lowest == lowest
    assert torch.equal(found.table, bias.table(lowest, highest))


def test_a_table_wants_a_gradient_where_its_weight_does() -> None:
    given_, bias = inputs(SIZES), RelativeBias(6)
    assert settled(given_, bias).wants_gradient
    with torch.no_grad():
        assert not settled(given_, bias).wants_gradient
    assert not settled(given_, bias.requires_grad_(False)).wants_gradient
    assert not settled(given_, Alibi(6)).wants_gradient
    assert settled(given_, torch.zeros((), requires_grad=True)).wants_gradient


def test_a_finite_float64_weight_stays_finite() -> None:
    bias = RelativeBias(6, dtype=torch.float64)
    with torch.no_grad():
        bias.weight.fill_(-1e300)
        bias.weight[0] = float("-inf")
    found = settled(inputs(SIZES), bias, 0).distances
    assert found is not None
    assert found.table.min() == float("-inf")
    assert (found.table[:, 7:] == torch.finfo(torch.float32).min).all()


def test_minus_infinity_in_a_weight_closes_a_distance() -> None:
    query, key, value = inputs(Sizes(1, 1, 1, 4, 4, 2, 2))
    bias = RelativeBias(1)
    with torch.no_grad():
        bias.weight.zero_()
        bias.weight[1:17] = float("-inf")
    keep = torch.ones(4, 4, dtype=torch.bool).tril(-1).logical_not()
    found = hw.attend(query, key, value, bias=bias, backend="reference")
    torch.testing.assert_close(found, hw.attend(query, key, value, hw.Dense(keep)))


@pytest.mark.parametrize(
    "sizes", [Sizes(batch=0), Sizes(q_len=0), Sizes(kv_len=0), Sizes(q_len=0, kv_len=0)]
)
@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("bias", [Alibi(3), RelativeBias(3)])
def test_empty_sizes(sizes: Sizes, per_sample: bool, bias: Alibi | RelativeBias) -> None:
    given_ = inputs(sizes)
    offset = torch.zeros(sizes.batch, dtype=torch.int64) if per_sample else 0
    output = hw.attend(*given_, bias=bias, q_offset=offset, kv_offset=offset, backend="reference")
    assert output.shape == (sizes.batch, 3, sizes.q_len, 13)
    assert (output == 0).all()


@pytest.mark.usefixtures("plain_calls")
@pytest.mark.parametrize(("kind", "numbers"), [("Alibi", "slopes"), ("RelativeBias", "weight")])
@pytest.mark.parametrize("count", [3, 1, 7])
def test_another_number_of_heads_is_refused(kind: str, numbers: str, count: int) -> None:
    bias = getattr(hw.positions, kind)(count)
    shape = (count,) if kind == "Alibi" else (32, count)
    with pytest.raises(ShapeError) as refusal:
        hw.attend(*inputs(SIZES), bias=bias)
    assert str(refusal.value) == (
        f"attend: {kind} must have as many heads as query, got {count} and 6\n"
        "  query   (2, 6, 5, 4) torch.float32 cpu\n"
        f"  {numbers}  {shape} torch.float32 cpu\n"
        "  hint: make it with num_heads=6; grouped heads count as query heads"
    )


@pytest.mark.usefixtures("plain_calls")
def test_a_weight_elsewhere_is_refused() -> None:
    with pytest.raises(DtypeError) as refusal:
        hw.attend(*inputs(SIZES), bias=RelativeBias(6, device="meta"))
    assert str(refusal.value) == (
        "attend: the weight of RelativeBias must be on the device of query\n"
        "  query   (2, 6, 5, 4) torch.float32 cpu\n"
        "  weight  (32, 6) torch.float32 meta\n"
        "  hint: move it with .to('cpu')"
    )


@pytest.mark.usefixtures("plain_calls")
def test_another_module_is_no_bias() -> None:
    with pytest.raises(DtypeError, match="Alibi or RelativeBias, got Linear"):
        hw.attend(*inputs(SIZES), bias=torch.nn.Linear(1, 1))  # type: ignore[arg-type]


def test_autocast_leaves_the_bias_alone() -> None:
    bias = RelativeBias(6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        call = settled(inputs(SIZES), bias)
    assert call.query.dtype == torch.bfloat16
    assert call.distances is not None
    assert torch.equal(call.distances.table, bias.table(-4, 6))


def test_every_function_takes_them() -> None:
    query, key, value = inputs(SIZES)
    for bias in (Alibi(6), RelativeBias(6)):
        plan = hw.explain(query, key, value, bias=bias)
        assert plan.refusals["reference"] == []
        found = hw.attend_with_lse(query, key, value, bias=bias, backend="reference")
        weights = hw.attention_weights(query, key, bias=bias)
        shared = value.repeat_interleave(2, 1)
        torch.testing.assert_close(weights @ shared, found.output)


@pytest.mark.parametrize("bias", [Alibi(6), RelativeBias(6)], ids=lambda bias: type(bias).__name__)
def test_sdpa_never_spells_them_out(bias: Alibi | RelativeBias) -> None:
    plan = hw.explain(*inputs(SIZES), bias=bias, backend="sdpa")
    assert plan.backend is None
    reason = "it would need the bias by distance spelled out for every pair"
    assert reason in plan.refusals["sdpa"]


@pytest.mark.parametrize("dynamic", [False, True])
def test_settling_can_be_traced(dynamic: bool) -> None:
    torch.compiler.reset()
    alibi, relative = Alibi(6), RelativeBias(6)

    def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        given = Inputs(query, key, value)
        slopes, distances = settled(given, alibi).slopes, settled(given, relative, 2).distances
        assert slopes is not None
        assert distances is not None
        return distances.table * slopes[:, None] + distances.lowest

    compiled = torch.compile(run, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for sizes in (SIZES, SIZES._replace(q_len=6, kv_len=11)):
        given_ = inputs(sizes)
        torch.testing.assert_close(compiled(*given_), run(*given_))
