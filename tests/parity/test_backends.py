"""Every backend against the float64 oracle, over drawn calls."""

import torch
from hypothesis import given
from hypothesis import strategies as st

import headwise as hw
from tests.support.budget import assert_within_budget
from tests.support.calls import Call, calls
from tests.support.oracle import attention
from tests.support.paths import Path, on_all, on_all_once, on_exact, on_exact_once
from tests.support.shapes import KEY_EDGES, QUERY_EDGES, Sizes, inputs

DTYPES = (torch.float64, torch.float16, torch.bfloat16)


@on_all_once
@given(call=calls())
def test_output(path: Path, call: Call) -> None:
    with path.taken() as backend:
        if hw.explain(*call.given, call.pattern, backend=backend, **call.keywords).backend is None:
            assert backend == "sdpa"
            return
        output = hw.attend(*call.given, call.pattern, backend=backend, **call.keywords)
    exact = call.answer()
    plain = call.plain(exact)
    assert_within_budget(output, exact=exact.output, plain=plain.output, label=str(path))


@on_exact_once
@given(call=calls())
def test_log_sum_exp(path: Path, call: Call) -> None:
    with path.taken() as backend:
        output, lse = hw.attend_with_lse(
            *call.given, call.pattern, backend=backend, **call.keywords
        )
        alone = hw.attend(*call.given, call.pattern, backend=backend, **call.keywords)
    exact = call.answer()
    plain = call.plain(exact)
    assert_within_budget(output, exact=exact.output, plain=plain.output, label=f"{path} output")
    assert_within_budget(lse, exact=exact.lse, plain=plain.lse, label=f"{path} lse")
    assert torch.equal(output, alone)


@given(
    data=st.data(), dtype=st.sampled_from(DTYPES), backend=st.sampled_from(["reference", "sdpa"])
)
def test_other_dtypes(data: st.DataObject, dtype: torch.dtype, backend: str) -> None:
    call = data.draw(calls(dtype=dtype, q_lens=(1, 5, 49), kv_lens=(1, 31, 129)))
    if hw.explain(*call.given, call.pattern, backend=backend, **call.keywords).backend is None:
        return
    output = hw.attend(*call.given, call.pattern, backend=backend, **call.keywords)
    assert output.dtype == dtype
    exact = call.answer()
    plain = call.plain(exact, dtype)
    assert_within_budget(output, exact=exact.output, plain=plain.output, label=backend)


@given(call=calls())
def test_auto(call: Call) -> None:
    output = hw.attend(*call.given, call.pattern, **call.keywords)
    exact = call.answer()
    plain = call.plain(exact)
    assert_within_budget(output, exact=exact.output, plain=plain.output, label="auto")


@on_all_once
def test_tile_edges(path: Path) -> None:
    for q_len in QUERY_EDGES:
        for kv_len in KEY_EDGES:
            sizes = Sizes(1, 1, 2, q_len, kv_len, 19, 23)
            given_, label = inputs(sizes), f"{path} {q_len}x{kv_len}"
            for pattern in (hw.Full(), hw.Causal(), hw.Causal() & hw.Window(60, 0)):
                with path.taken() as backend:
                    output = hw.attend(*given_, pattern, backend=backend)
                visible = pattern.dense(q_len, kv_len)
                exact = attention(*given_, visible).output
                plain = attention(*given_, visible, dtype=torch.float32).output
                assert_within_budget(output, exact=exact, plain=plain, label=label)


@on_all
def test_long_rows_of_large_scores(path: Path) -> None:
    given_ = inputs(Sizes(1, 1, 1, 3, 2053, 64, 64), spread=6.0)
    with path.taken() as backend:
        output = hw.attend(*given_, backend=backend)
    exact, plain = attention(*given_), attention(*given_, dtype=torch.float32)
    assert_within_budget(output, exact=exact.output, plain=plain.output, label=str(path))


@on_exact
def test_scores_far_beyond_the_range_of_exp(path: Path) -> None:
    given_ = inputs(Sizes(1, 1, 1, 50, 140, 8, 8), spread=100.0)
    for bias in (torch.tensor(5e4), torch.tensor(-5e4), torch.tensor(-3e38)):
        with path.taken() as backend:
            output, lse = hw.attend_with_lse(*given_, bias=bias, backend=backend)
        exact = attention(*given_, bias=bias)
        plain = attention(*given_, bias=bias, dtype=torch.float32)
        assert_within_budget(output, exact=exact.output, plain=plain.output, label=f"{path} {bias}")
        assert_within_budget(lse, exact=exact.lse, plain=plain.lse, label=f"{path} {bias} lse")


@on_exact
def test_lse_is_float32_or_wider_and_natural(path: Path) -> None:
    ones = torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 5, 4), torch.zeros(1, 1, 5, 4)
    with path.taken() as backend:
        lse = hw.attend_with_lse(*ones, backend=backend).lse
    assert lse.dtype == torch.float32
    torch.testing.assert_close(lse, torch.full((1, 1, 2), 5.0).log())
