"""Laws of gradients through the kernels that need no reference numbers."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import headwise as hw
from headwise.patterns import Pattern
from tests.support.budget import assert_same_bits, assert_within_budget
from tests.support.paths import ISAS, Path, on_exact_once, on_native_once
from tests.support.shapes import Inputs, Sizes
from tests.support.whole_calls import Derived, WholeCall, assert_derived, simple
from tests.support.whole_draws import Lengths, sparing, whole_calls

ODD = (float("nan"), float("inf"), float("-inf"), 1e30)
LENGTHS = Lengths((1, 5, 47, 49), (1, 3, 48, 127, 129))
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def call_of(
    sizes: Sizes, pattern: Pattern | None = None, dtype: torch.dtype = torch.float32
) -> WholeCall:
    """Return a call with a gradient of the log-sum-exp."""
    d_lse = torch.randn(sizes.batch, sizes.heads, sizes.q_len)
    return simple(sizes, dtype=dtype, pattern=pattern, d_lse=d_lse)


def cut(call: WholeCall, samples: slice, kv_heads: slice = slice(None)) -> WholeCall:
    """Return the part of a call without tensors of its own beside query, key and value."""
    query, key, value = call.given
    group = query.shape[1] // key.shape[1]
    first, end, _ = kv_heads.indices(key.shape[1])
    heads = slice(first * group, end * group)
    part = Inputs(query[samples, heads], *(t[samples, kv_heads] for t in (key, value)))
    setting = replace(call.setting, batch=len(part.query), heads=part.query.shape[1])
    d_lse = None if call.d_lse is None else call.d_lse[samples, heads]
    d_output = call.d_output[samples, heads]
    return replace(call, given=part, setting=setting, d_output=d_output, d_lse=d_lse)


def of_samples(found: Derived, samples: slice | Tensor) -> Derived:
    """Return what belongs to some samples; nothing was learned."""
    output, lse, *gradients = found[:5]
    query, key, value = (gradient[samples] for gradient in gradients)
    return Derived(output[samples], lse[samples], query, key, value, None, None)


def run(path: Path, call: WholeCall) -> Derived:
    with path.taken() as backend:
        return call.run(backend)


def assert_all_bits(found: Derived, wanted: Derived, label: str = "") -> None:
    for name, one, two in zip(found._fields, found, wanted, strict=True):
        if two is not None:
            assert one is not None
            assert_same_bits(one, two, f"{label} {name}")


def seen(call: WholeCall) -> Tensor:
    """Say which pairs pattern and bias allow together."""
    allowed = torch.ones(call.shape, dtype=torch.bool)
    visible = call.visible()
    if visible is not None:
        allowed = allowed & visible
    if isinstance(call.bias, Tensor):
        allowed = allowed & (call.bias != float("-inf"))
    return allowed


@sparing
@given(call=whole_calls(lengths=LENGTHS))
def test_thread_counts_do_not_change_bits(call: WholeCall) -> None:
    for isa in ISAS:
        wanted = run(Path("native", isa, 1), call)
        for threads in (3, 5):
            found = run(Path("native", isa, threads), call)
            assert_all_bits(found, wanted, f"{isa} {threads}")


@on_native_once
@pytest.mark.parametrize("pattern", [None, hw.Causal() & hw.Window(700, 0)], ids=repr)
def test_one_long_head_has_the_bits_it_has_among_others(
    path: Path, pattern: Pattern | None
) -> None:
    """How the work is split over threads may follow batch and heads; sums may not."""
    many = call_of(Sizes(2, 2, 3, 53, 3001, 16, 16), pattern)
    together = run(path, many)
    one_head = cut(many, slice(1, 2), slice(1, 2))
    lone = [run(path._replace(threads=threads), one_head) for threads in (1, 2, 3, 5)]
    for found in lone:
        assert_all_bits(found, lone[0], "threads")
    query_heads = slice(3, 6)
    for name in ("output", "lse", "d_query"):
        whole = getattr(together, name)
        assert_same_bits(getattr(lone[0], name)[0], whole[1, query_heads], name)
    for name in ("d_key", "d_value"):
        assert_same_bits(getattr(lone[0], name)[0, 0], getattr(together, name)[1, 1], name)


@on_native_once
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_samples_do_not_know_each_other(path: Path, dtype: torch.dtype) -> None:
    for sizes in (Sizes(5, 4, 3, 97, 300, 24, 40), Sizes(5, 12, 1, 3, 300, 24, 40)):
        call = call_of(sizes, hw.Causal(), dtype)
        together = run(path, call)
        for sample in (0, 4):
            alone = run(path, cut(call, slice(sample, sample + 1)))
            wanted = of_samples(together, slice(sample, sample + 1))
            assert_all_bits(alone, wanted, f"sample {sample}")
        turned = Inputs(*(t.flip(0) for t in call.given))
        assert call.d_lse is not None
        backwards = replace(
            call, given=turned, d_output=call.d_output.flip(0), d_lse=call.d_lse.flip(0)
        )
        wanted = of_samples(together, torch.arange(5).flip(0))
        assert_all_bits(run(path, backwards), wanted, "backwards")


@on_native_once
def test_more_padding_on_the_right_keeps_the_bits(path: Path) -> None:
    """What is past the real keys and queries changes no bit of what comes back to the real ones."""
    call = call_of(Sizes(2, 2, 2, 97, 97, 24, 24), hw.Causal())
    assert call.d_lse is not None
    padded = replace(
        call,
        given=Inputs(*(torch.nn.functional.pad(t, (0, 0, 0, 203), value=9.0) for t in call.given)),
        setting=replace(call.setting, q_len=300, kv_len=300),
        pattern=hw.Causal() & hw.Lengths(97, 97),
        d_output=torch.nn.functional.pad(call.d_output, (0, 0, 0, 203), value=float("nan")),
        d_lse=torch.nn.functional.pad(call.d_lse, (0, 203), value=float("nan")),
    )
    before, after = run(path, call), run(path, padded)
    for name, one, two in zip(before._fields, before, after, strict=True):
        if one is not None:
            assert two is not None
            assert_same_bits(two[:, :, :97], one, name)
    for gradient in (after.d_query, after.d_key, after.d_value):
        assert (gradient[:, :, 97:] == 0).all()


@on_exact_once
@sparing
@given(call=whole_calls(lengths=LENGTHS), odd=st.sampled_from(ODD))
def test_masked_numbers_and_closed_rows_never_reach_a_gradient(
    path: Path, call: WholeCall, odd: float
) -> None:
    allowed = seen(call)
    query, key, value = call.given
    by_group = allowed.any(2).view(key.shape[0], key.shape[1], -1, key.shape[2])
    hidden = ~by_group.any(2).unsqueeze(-1)
    closed = ~allowed.any(3)
    spoiled = replace(
        call,
        given=Inputs(
            query.masked_fill(closed.unsqueeze(-1), odd),
            key.masked_fill(hidden, odd),
            value.masked_fill(hidden, odd),
        ),
        d_output=call.d_output.masked_fill(closed.unsqueeze(-1), odd),
        d_lse=None if call.d_lse is None else call.d_lse.masked_fill(closed, odd),
    )
    before, after = run(path, call), run(path, spoiled)
    assert_all_bits(after, before, f"{odd}")
    assert (after.d_query[closed] == 0).all()
    assert (after.d_key[hidden.squeeze(-1)] == 0).all()
    assert (after.d_value[hidden.squeeze(-1)] == 0).all()


@on_exact_once
@pytest.mark.parametrize("which", [1, 2], ids=["key", "value"])
def test_a_key_hidden_from_some_rows_stays_out_of_their_gradients(path: Path, which: int) -> None:
    call = call_of(Sizes(1, 2, 2, 97, 300, 24, 24), hw.Causal())
    before = run(path, call)
    for odd in ODD:
        for where in (299, 257, 250, 204):
            spoiled = [t.clone() for t in call.given]
            spoiled[which][:, :, where] = odd
            after = run(path, replace(call, given=Inputs(*spoiled)))
            rows = slice(0, where - (300 - 97))
            label = f"{odd} at {where}"
            assert_same_bits(after.d_query[:, :, rows], before.d_query[:, :, rows], label)


@on_native_once
@sparing
@given(call=whole_calls(lengths=LENGTHS))
def test_gradients_of_grouped_heads_are_sums_over_repeated_ones(
    path: Path, call: WholeCall
) -> None:
    query, key, value = call.given
    group = query.shape[1] // key.shape[1]
    repeated = Inputs(query, *(t.repeat_interleave(group, 1) for t in (key, value)))
    grouped, each = run(path, call), run(path, replace(call, given=repeated))
    for name in ("output", "lse", "d_query", "d_bias", "d_sinks"):
        if getattr(each, name) is not None:
            assert_same_bits(getattr(grouped, name), getattr(each, name), name)
    exact = call.spelled(torch.float64)
    for name in ("d_key", "d_value"):
        apart = getattr(each, name)
        summed = apart.reshape(len(apart), -1, group, *apart.shape[2:]).sum(2)
        assert_within_budget(
            getattr(grouped, name), exact=getattr(exact, name), plain=summed, label=f"{path} {name}"
        )


@on_native_once
def test_merged_parts_have_the_gradients_of_the_whole(path: Path) -> None:
    """Parts weighed by their log-sum-exp; some rows see nothing of the last one."""
    call = call_of(Sizes(2, 2, 2, 49, 300, 24, 24), hw.Causal())
    exact = call.spelled(torch.float64)
    plain = call.plain(exact)
    free = call.free()
    with path.taken() as backend:
        parts = [
            hw.attend_with_lse(
                free.query,
                free.key[:, :, first:end],
                free.value[:, :, first:end],
                hw.Causal(),
                q_offset=300 - 49,
                kv_offset=first,
                backend=backend,
            )
            for first, end in pairwise((0, 1, 120, 128, 280, 300))
        ]
        assert (parts[-1].lse[:, :, :29] == float("-inf")).all()
        lse = torch.logsumexp(torch.stack([part.lse for part in parts]), 0)
        weights = [(part.lse - lse).exp().unsqueeze(-1) for part in parts]
        output = sum(weight * part.output for weight, part in zip(weights, parts, strict=True))
        assert isinstance(output, Tensor)
        assert call.d_lse is not None
        query, key, value = torch.autograd.grad(
            (output, lse), free[:3], (call.d_output, call.d_lse)
        )
    found = Derived(output.detach(), lse.detach(), query, key, value, None, None)
    assert_derived(found, exact=exact, plain=plain, label=f"{path} merged")
