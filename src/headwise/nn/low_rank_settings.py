"""Which projections low-rank attention has, and who may share them."""

from headwise.errors import ShapeError

_NAME = "LowRank"
_KINDS = ("linear", "conv", "mean")
_SHARES = ("none", "kv", "heads", "all")


def check_kind(rank: int, max_length: int, share: str, projection: str) -> None:
    """Refuse unknown projections and ways of sharing, and windows of different sizes."""
    if share not in _SHARES:
        raise ValueError(
            f"{_NAME}: share must be one of {', '.join(_SHARES)}, got {share!r}\n"
            "  hint: layers share projections by having one LowRank object as mechanism"
        )
    if projection not in _KINDS:
        raise ValueError(
            f"{_NAME}: projection must be one of {', '.join(_KINDS)}, got {projection!r}\n"
            "  hint: linear learns a number for each place, conv one kernel for all windows, mean "
            "nothing"
        )
    if projection == "mean" and share != "none":
        raise ValueError(
            f'{_NAME}: projection="mean" learns nothing that could be shared, got share={share!r}\n'
            "  hint: leave share out"
        )
    if projection != "linear" and max_length % rank:
        raise ShapeError(
            f"{_NAME}: rank must divide max_length for projection={projection!r}, got {rank} and "
            f"{max_length}\n"
            "  hint: round max_length up; windows that no token reaches cost nothing"
        )


def check_places(max_length: int, length: int) -> None:
    """Refuse more tokens than a mechanism was made for."""
    if length > max_length:
        raise ShapeError(
            f"{_NAME}: a call may bring max_length={max_length} tokens, got {length}\n"
            "  hint: cut the input, or make the mechanism with a larger max_length"
        )
