"""The exceptions are those that a caller would expect to catch."""

import pytest
import torch

from headwise import _checks, errors


@pytest.mark.parametrize(
    ("ours", "builtin"),
    [
        (errors.ShapeError, ValueError),
        (errors.DtypeError, TypeError),
        (errors.PatternError, ValueError),
        (errors.CacheError, RuntimeError),
        (errors.BackendRefused, NotImplementedError),
        (errors.NativeMissingWarning, UserWarning),
    ],
)
def test_each_is_a_kind_of_a_builtin(ours: type, builtin: type) -> None:
    assert issubclass(ours, builtin)


def test_a_shape_refusal_names_caller_rule_tensors_and_way_out() -> None:
    found = _checks.refuse_shapes(
        "caller", "the rule, got 3", "the way out", a=torch.zeros(2), longer=torch.zeros(1, 3).int()
    )
    assert isinstance(found, errors.ShapeError)
    assert str(found) == (
        "caller: the rule, got 3\n"
        "  a       (2,) torch.float32 cpu\n"
        "  longer  (1, 3) torch.int32 cpu\n"
        "  hint: the way out"
    )


def test_a_dtype_refusal_reads_the_same() -> None:
    found = _checks.refuse_dtypes("caller", "the rule", "the way out", a=torch.zeros(2))
    assert isinstance(found, errors.DtypeError)
    assert str(found) == "caller: the rule\n  a  (2,) torch.float32 cpu\n  hint: the way out"
