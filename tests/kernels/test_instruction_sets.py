"""Which instruction sets there are, that forcing one takes effect, and that all agree."""

import os
import subprocess
import sys
from pathlib import Path as File

import pytest
import torch

import headwise as hw
from headwise import _native
from headwise.patterns import tiles
from tests.support.budget import assert_within_budget
from tests.support.oracle import attention
from tests.support.paths import ISAS, Path, on_native
from tests.support.shapes import Sizes, inputs

SAY = "import headwise._native as n; print(n.isa())"


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_the_plain_set_is_always_there_and_comes_first() -> None:
    assert ISAS[0] == "scalar"
    assert len(set(ISAS)) == len(ISAS)


def test_the_sets_are_those_of_the_processor() -> None:
    flags = set(File("/proc/cpuinfo").read_text().split())
    assert ("avx2" in ISAS) == ({"avx2", "fma", "f16c"} <= flags)
    assert ("avx512" in ISAS) == ({"avx512f", "avx512bw", "avx512vl", "avx512dq"} <= flags)


@pytest.mark.parametrize("isa", ISAS)
def test_forcing_one_takes_effect_and_ends(isa: str) -> None:
    before = _native.isa()
    with _native.use_isa(isa):
        assert _native.isa() == isa
    assert _native.isa() == before
    with pytest.raises(KeyError), _native.use_isa(isa):
        raise KeyError
    assert _native.isa() == before


def test_an_unknown_set_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match="mmx") as caught, _native.use_isa("mmx"):
        pass
    known = ", ".join(ISAS)
    wanted = f"instruction set 'mmx' is not available here; there are {known}"
    assert str(caught.value) == wanted


@pytest.mark.parametrize("isa", ISAS)
def test_the_environment_forces_one(isa: str) -> None:
    done = run(SAY, HEADWISE_ISA=isa)
    assert done.stdout.strip() == isa, done.stderr


def test_the_best_one_is_chosen_without() -> None:
    assert run(SAY, HEADWISE_ISA="").stdout.strip() == ISAS[-1]


def test_an_unknown_set_in_the_environment_is_an_error_that_names_the_others() -> None:
    done = run(SAY, HEADWISE_ISA="mmx")
    assert done.returncode == 1
    said = "\n".join(done.stderr.strip().splitlines()[-2:])
    assert "HEADWISE_ISA: instruction set 'mmx' is not available here" in said
    assert ", ".join(ISAS) in said


def test_tiles_have_the_size_that_patterns_are_lowered_to() -> None:
    kernels = _native.kernels
    assert (kernels.QUERY_TILE, kernels.KEY_TILE) == (tiles.QUERY_TILE, tiles.KEY_TILE)


@on_native
def test_small_calls_after_large_ones(path: Path) -> None:
    """A workspace that stays must not carry numbers over."""
    with path.taken() as backend:
        for scale in (1, 5, 1, 3, 1):
            for q_len in (3, 50 * scale):
                given = inputs(
                    Sizes(1, 2, 2, q_len, 130 * scale, 16 * scale, 8 * scale), seed=scale
                )
                output = hw.attend(*given, backend=backend)
                exact = attention(*given).output
                plain = attention(*given, dtype=torch.float32).output
                assert_within_budget(output, exact=exact, plain=plain, label=f"{path} {q_len}")


@on_native
def test_exponentials_to_a_few_units_in_the_last_place(path: Path) -> None:
    """Two keys with scores 0 and -x: the second one's weight is exp(-x) / (1 + exp(-x))."""
    x = torch.linspace(0, 80, 60_001, dtype=torch.float64).float()
    key = torch.tensor([[0.0], [-1.0]]).view(1, 1, 2, 1)
    value = torch.tensor([[0.0], [1.0]]).view(1, 1, 2, 1)
    with path.taken() as backend:
        for width in (len(x), 7):
            query = x.view(-1, 1, 1, 1) if width == 7 else x.view(1, 1, -1, 1)
            shape = (query.shape[0], 1, 2, 1)
            found = hw.attend(
                query, key.expand(shape), value.expand(shape), scale=1.0, backend=backend
            )
            wanted = torch.sigmoid(-x.double())
            error = ((found.flatten().double() - wanted) / wanted).abs().max().item()
            # exp(-x) itself is as wrong as x is rounded after the change to base 2.
            assert error < 2 * 80 * torch.finfo(torch.float32).eps
            near = x < 1
            error = ((found.flatten().double() - wanted) / wanted)[near].abs().max().item()
            assert error < 6 * torch.finfo(torch.float32).eps


@on_native
def test_weights_that_underflow_are_zero_and_never_negative(path: Path) -> None:
    x = torch.linspace(80, 400, 5001)
    key = torch.tensor([[0.0], [-1.0]]).view(1, 1, 2, 1)
    value = torch.tensor([[0.0], [1.0]]).view(1, 1, 2, 1)
    with path.taken() as backend:
        found = hw.attend(x.view(1, 1, -1, 1), key, value, scale=1.0, backend=backend).flatten()
    assert (found >= 0).all()
    assert (found[x > 105] == 0).all()
    assert (found < 2e-35).all()
