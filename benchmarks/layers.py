"""Measures the layer against torch's own: whole, its projections, a step of decoding."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle

import torch
from torch import Tensor, nn
from torch.nn import functional

import headwise as hw
from benchmarks.figures import Figure, figure, main
from headwise.cli.bench.measure import alternate
from headwise.cli.failures import Unable
from headwise.ops.projection import linear

_SLACK = 4.0
_MEMORY = 256 << 20  # bytes read to learn how fast memory is


def layer(seconds: float) -> Iterator[Figure]:
    """Compare the layer with ``nn.MultiheadAttention``, without weights, in inference."""
    for samples, length, width, heads in ((4, 512, 768, 12), (1, 1031, 768, 12), (3, 333, 640, 8)):
        for dtype in (torch.float32, torch.bfloat16):
            theirs = nn.MultiheadAttention(width, heads, batch_first=True).to(dtype).eval()
            ours = hw.MultiHeadAttention.from_torch(theirs)
            x = torch.randn(samples, length, width).to(dtype)

            def torchs() -> Tensor:
                found: Tensor = theirs(x, x, x, need_weights=False)[0]  # noqa: B023
                return found

            yield _compared(
                f"layer ({samples}, {length}, {width}), {heads} heads",
                dtype,
                torchs,
                partial(ours, x),
                lambda: theirs.double()(*3 * [x.double()])[0],  # noqa: B023
                seconds,
            )


def rows(seconds: float) -> Iterator[Figure]:
    """Compare linear maps of few rows with ``F.linear``, and with reading the weight once."""
    for inputs, outputs in ((4096, 4096), (4097, 1031)):
        for count in (1, 4):
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                weight = torch.randn(outputs, inputs).to(dtype)
                # Several weights take turns, for those of a model are not in the cache either.
                copies = 1 + _MEMORY // weight.nbytes
                ours, theirs = (cycle([weight.clone() for _ in range(copies)]) for _ in "ab")
                x, bias = torch.randn(count, inputs).to(dtype), torch.randn(outputs).to(dtype)
                name = f"{count} row{'s' * (count > 1)} {inputs} to {outputs}"
                yield from _against_memory(
                    name,
                    dtype,
                    lambda: functional.linear(x, next(theirs), bias),  # noqa: B023
                    lambda: linear(x, next(ours), bias),  # noqa: B023
                    lambda: functional.linear(x.double(), weight.double(), bias.double()),  # noqa: B023
                    weight.nbytes,
                    seconds,
                )


def decode(seconds: float) -> Iterator[Figure]:
    """Compare a step of the layer with reading its weights, keys and values once."""
    for held in (512, 4001):
        for dtype in (torch.float32, torch.bfloat16):
            made = hw.MultiHeadAttention(
                4096, 32, num_kv_heads=8, positions=hw.positions.Rotary(128), pattern=hw.Causal()
            )
            ours = made.to(dtype).eval()
            cache = hw.KVCache(capacity=held + 1)
            x = torch.randn(1, 1, 4096).to(dtype)
            ours(torch.randn(1, held, 4096).to(dtype), cache=cache)

            def step() -> Tensor:
                cache.crop(held)  # noqa: B023
                found: Tensor = ours(x, cache=cache)  # noqa: B023
                return found

            moved = sum(p.nbytes for p in ours.parameters()) + cache.nbytes
            memory = torch.randn(_MEMORY // 4)
            times = alternate({"step": step, "memory": memory.sum}, seconds)
            shares = [
                a / (b * moved / memory.nbytes)
                for a, b in zip(times["step"], times["memory"], strict=True)
            ]
            name = f"step after {held:,} tokens {_short(dtype)}"
            yield figure(
                name, "width 4096, 32 over 8 heads", [1e3 * t for t in times["step"]], "ms"
            )
            yield figure(name, f"over reading {moved / 1e6:.0f} MB once", shares, "x")


def encoder(seconds: float) -> Iterator[Figure]:
    """Compare ``nn.TransformerEncoder`` before and after the layer is swapped in."""
    for training in (False, True):
        block = nn.TransformerEncoderLayer(512, 8, dropout=0.0, batch_first=True)
        theirs = nn.TransformerEncoder(block, 4, enable_nested_tensor=False).train(training)
        ours = nn.TransformerEncoder(block, 4, enable_nested_tensor=False).train(training)
        ours.load_state_dict(theirs.state_dict())
        for part in ours.layers:
            assert isinstance(part, nn.TransformerEncoderLayer)
            part.self_attn = hw.nn.TorchMultiheadAttention.from_torch(part.self_attn)
        x = torch.randn(4, 517, 512)

        def run(model: nn.Module) -> Tensor:
            with torch.set_grad_enabled(training):  # noqa: B023
                found: Tensor = model(x)  # noqa: B023
                if training:  # noqa: B023
                    torch.autograd.backward(found.square().mean())
                return found.detach()

        yield _compared(
            f"nn.TransformerEncoder, 4 x 512, {'training' if training else 'inference'}",
            torch.float32,
            partial(run, theirs),
            partial(run, ours),
            lambda: theirs.double()(x.double()).detach(),  # noqa: B023
            seconds,
        )


def _compared(
    name: str,
    dtype: torch.dtype,
    theirs: Callable[[], Tensor],
    ours: Callable[[], Tensor],
    exact: Callable[[], Tensor],
    seconds: float,
) -> Figure:
    """Return how many times as fast ours is, behind a check; ``exact`` runs last."""
    plain, found = theirs(), ours()
    times = alternate({"theirs": theirs, "ours": ours}, seconds)
    _check(name, found, plain, exact())
    ratios = [a / b for a, b in zip(times["theirs"], times["ours"], strict=True)]
    return figure(f"{name} {_short(dtype)}", "times as fast as torch's", ratios, "x")


def _against_memory(
    name: str,
    dtype: torch.dtype,
    theirs: Callable[[], Tensor],
    ours: Callable[[], Tensor],
    exact: Callable[[], Tensor],
    moved: int,
    seconds: float,
) -> Iterator[Figure]:
    _check(name, ours(), theirs(), exact())
    memory = torch.randn(_MEMORY // 4)
    times = alternate({"theirs": theirs, "ours": ours, "memory": memory.sum}, seconds)
    ratios = [a / b for a, b in zip(times["theirs"], times["ours"], strict=True)]
    shares = [
        100 * (b / memory.nbytes * moved) / a
        for a, b in zip(times["ours"], times["memory"], strict=True)
    ]
    yield figure(f"{name} {_short(dtype)}", "times as fast as F.linear", ratios, "x")
    yield figure(f"{name} {_short(dtype)}", "of memory speed", shares, "%")


def _check(name: str, found: Tensor, plain: Tensor, exact: Tensor) -> None:
    """Refuse a figure for an answer that is more than four times as wrong as torch's."""
    step = torch.finfo(plain.dtype).eps * exact.abs().max().item()
    usual = (plain.double() - exact).abs().max().item()
    error, allowed = (found.double() - exact).abs().max().item(), _SLACK * max(usual, step)
    if not error <= allowed:
        raise Unable(f"{name}: wrong by {error:.3e}, where {allowed:.3e} is allowed; not measured")


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


if __name__ == "__main__":
    with torch.no_grad():
        main(
            "benchmarks.layers",
            __doc__,
            {"layer": layer, "rows": rows, "decode": decode, "encoder": encoder},
        )
