"""Laws of attention that need no reference numbers."""

from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import headwise as hw
from tests.support.budget import assert_same_bits
from tests.support.calls import Call, calls
from tests.support.paths import (
    EXACT,
    NATIVE,
    Path,
    on_exact,
    on_exact_once,
    on_native,
    on_native_once,
)
from tests.support.shapes import Inputs, Sizes, inputs

ODD = (float("nan"), float("inf"), float("-inf"), 1e30, -1e30)
LONG = Sizes(3, 2, 2, 97, 300, 32, 32)


def attended(path: Path, call: Call) -> hw.Attended:
    with path.taken() as backend:
        return hw.attend_with_lse(*call.given, call.pattern, backend=backend, **call.keywords)


@on_exact_once
@given(call=calls(), odd=st.sampled_from(ODD))
def test_masked_numbers_never_touch_the_result(path: Path, call: Call, odd: float) -> None:
    shape = (call.setting.batch, call.setting.heads, call.setting.q_len, call.setting.kv_len)
    seen = torch.ones(shape, dtype=torch.bool)
    visible = call.visible()
    if visible is not None:
        seen = seen & visible
    if call.bias is not None:
        seen = seen & (call.bias != float("-inf"))
    query, key, value = call.given
    by_group = seen.any(2).view(key.shape[0], key.shape[1], -1, key.shape[2])
    hidden = ~by_group.any(2)
    spoiled = Inputs(query, *(t.masked_fill(hidden[..., None], odd) for t in (key, value)))
    before, after = attended(path, call), attended(path, replace(call, given=spoiled))
    assert_same_bits(after.output, before.output, "output")
    assert_same_bits(after.lse, before.lse, "lse")


@on_exact
def test_a_key_hidden_from_some_rows_stays_out_of_those(path: Path) -> None:
    query, key, value = inputs(LONG)
    with path.taken() as backend:
        before = hw.attend_with_lse(query, key, value, hw.Causal(), backend=backend)
    for odd in ODD:
        for where in (299, 290, 256, 250, 204):
            for which in (0, 1):
                spoiled = [key.clone(), value.clone()]
                spoiled[which][:, :, where] = odd
                with path.taken() as backend:
                    after = hw.attend_with_lse(
                        *Inputs(query, *spoiled), hw.Causal(), backend=backend
                    )
                rows = slice(0, where - (300 - 97))
                label = f"{path} {odd} at {where} of {('key', 'value')[which]}"
                assert_same_bits(after.output[:, :, rows], before.output[:, :, rows], label)
                assert_same_bits(after.lse[:, :, rows], before.lse[:, :, rows], label)


@on_native
def test_a_closed_query_may_be_nan(path: Path) -> None:
    query, key, value = inputs(LONG)
    query[:, :, 50:] = float("nan")
    with path.taken() as backend:
        output, lse = hw.attend_with_lse(
            query, key, value, hw.Lengths(300, 50), q_offset=0, backend=backend
        )
    assert output[:, :, :50].isfinite().all()
    assert (output[:, :, 50:] == 0).all()
    assert (lse[:, :, 50:] == float("-inf")).all()


@on_exact_once
@given(call=calls())
def test_rows_that_see_nothing_are_exact_zeros(path: Path, call: Call) -> None:
    closed = call.answer().lse == float("-inf")
    output, lse = attended(path, call)
    assert (output[closed] == 0).all()
    assert (lse[closed] == float("-inf")).all()
    weights = hw.attention_weights(call.given.query, call.given.key, call.pattern, **call.keywords)
    assert (weights[closed] == 0).all()


@on_native_once
@given(call=calls())
def test_samples_do_not_know_each_other(path: Path, call: Call) -> None:
    """Each sample alone, and any order of samples, gives the same bits."""
    if call.pattern is not None and call.pattern.batch_size not in (None, 1):
        return
    if call.bias is not None and call.bias.ndim == 4 and call.bias.shape[0] > 1:
        return
    if any(isinstance(offset, Tensor) for offset in call.setting.offsets.values()):
        return
    together = attended(path, call)
    for sample in range(call.setting.batch):
        alone = Inputs(*(t[sample : sample + 1] for t in call.given))
        setting = replace(call.setting, batch=1)
        found = attended(path, replace(call, given=alone, setting=setting))
        assert_same_bits(found.output[0], together.output[sample], "alone")
        assert_same_bits(found.lse[0], together.lse[sample], "alone lse")
    backwards = Inputs(*(t.flip(0) for t in call.given))
    assert_same_bits(
        attended(path, replace(call, given=backwards)).output.flip(0), together.output, "flipped"
    )


@on_native
def test_samples_with_patterns_of_their_own_do_not_know_each_other(path: Path) -> None:
    query, key, value = inputs(LONG)
    bias = torch.randn(3, 4, 97, 300)
    lengths, starts = torch.tensor([300, 211, 5]), torch.tensor([203, 90, 0])
    with path.taken() as backend:
        together = hw.attend(
            query,
            key,
            value,
            hw.Lengths(lengths) & hw.Causal(),
            bias=bias,
            q_offset=starts,
            backend=backend,
        )
        for sample, (length, start) in enumerate(
            zip(lengths.tolist(), starts.tolist(), strict=True)
        ):
            one = slice(sample, sample + 1)
            alone = hw.attend(
                query[one],
                key[one],
                value[one],
                hw.Lengths(length) & hw.Causal(),
                bias=bias[one],
                q_offset=start,
                backend=backend,
            )
            assert_same_bits(alone, together[one], f"sample {sample}")


@on_native_once
@given(call=calls())
def test_grouped_heads_equal_repeated_heads(path: Path, call: Call) -> None:
    group = call.given.query.shape[1] // call.given.key.shape[1]
    repeated = Inputs(call.given.query, *(t.repeat_interleave(group, 1) for t in call.given[1:]))
    grouped, plain = attended(path, call), attended(path, replace(call, given=repeated))
    assert_same_bits(grouped.output, plain.output, "output")
    assert_same_bits(grouped.lse, plain.lse, "lse")


@on_native_once
@given(call=calls())
def test_strides_do_not_change_bits(path: Path, call: Call) -> None:
    copied = Inputs(*(t.contiguous() for t in call.given))
    assert_same_bits(
        attended(path, call).output, attended(path, replace(call, given=copied)).output
    )


@given(call=calls())
def test_thread_counts_do_not_change_bits(call: Call) -> None:
    for isa in {path.isa for path in NATIVE}:
        found = [attended(Path("native", isa, threads), call) for threads in (1, 2, 5)]
        for other in found[1:]:
            assert_same_bits(other.output, found[0].output, f"{isa} output")
            assert_same_bits(other.lse, found[0].lse, f"{isa} lse")


@on_native
def test_right_padding_keeps_the_bits(path: Path) -> None:
    """The same lengths with a shorter real part: what stands in the padding is of no account."""
    query, key, value = inputs(LONG)
    lengths = hw.Lengths([300, 211, 5])
    others = inputs(LONG, seed=1)
    mixed = []
    for own, foreign in zip((key, value), others[1:], strict=True):
        kept = (torch.arange(300) < torch.tensor([300, 211, 5]).view(-1, 1)).view(3, 1, 300, 1)
        mixed.append(torch.where(kept, own, foreign))
    with path.taken() as backend:
        before = hw.attend(query, key, value, lengths, backend=backend)
        after = hw.attend(*Inputs(query, *mixed), lengths, backend=backend)
    assert_same_bits(after, before)


@on_native
def test_more_padding_on_the_right_keeps_the_bits(path: Path) -> None:
    """Queries, keys and values of 97 tokens, padded to 300, give the same first 97 rows."""
    query, key, value = inputs(Sizes(1, 2, 2, 97, 97, 32, 32))
    padded = Inputs(
        *(torch.nn.functional.pad(t, (0, 0, 0, 203), value=9.0) for t in (query, key, value))
    )
    with path.taken() as backend:
        for own in (hw.Full(), hw.Causal()):
            before = hw.attend(query, key, value, own, backend=backend)
            after = hw.attend(*padded, own & hw.Lengths(97), backend=backend)
            assert_same_bits(after[:, :, :97], before, str(own))


@on_native
def test_repeated_runs_give_the_same_bits(path: Path) -> None:
    given_ = inputs(LONG)
    with path.taken() as backend:
        first, *others = (hw.attend(*given_, hw.Causal(), backend=backend) for _ in range(5))
    for other in others:
        assert_same_bits(other, first)


def test_every_exact_path_is_there() -> None:
    assert EXACT[0].backend == "reference"
    assert [path.backend for path in EXACT[1:]] == ["native"] * len(NATIVE)
