"""What is measured: sizes, pattern, element type; each case is declared once."""

from dataclasses import dataclass

from headwise.patterns import Causal, Pattern, Window


@dataclass(frozen=True)
class Case:
    """One attention call to measure.

    Attributes:
        name: Short and unique; what ``--case`` takes.
        q_heads: Query heads.
        kv_heads: Key/value heads.
        q_len: Queries.
        kv_len: Keys.
        head_dim: Width of a head.
        pattern: Who may attend to whom; ``None`` = all.
        dtype: Name of the element type.
        reads: Report the rate at which keys and values are read instead of arithmetic.
    """

    name: str
    q_heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    pattern: Pattern | None = None
    dtype: str = "float32"
    reads: bool = False

    @property
    def sizes(self) -> str:
        """The sizes as people write them."""
        heads = (
            f"{self.q_heads}"
            if self.q_heads == self.kv_heads
            else (f"{self.q_heads}/{self.kv_heads}")
        )
        length = f"{self.q_len}" if self.q_len == self.kv_len else f"{self.q_len}/{self.kv_len}"
        return f"{heads} x {length} x {self.head_dim}"


def square(
    name: str, length: int, head_dim: int, pattern: Pattern | None, dtype: str = "float32"
) -> Case:
    """Return a case with 12 heads and as many queries as keys."""
    return Case(name, 12, 12, length, length, head_dim, pattern, dtype)


def _window(length: int) -> Case:
    return square(f"window-256-of-{length}", length, 64, Causal() & Window(255, 0))


_CAUSAL_1024 = square("causal-1024x64", 1024, 64, Causal())
_DECODE = Case("decode-4096x128", 32, 8, 1, 4096, 128, Causal(), reads=True)
_SHORT = square("short-16", 16, 64, None)
# Torch has bfloat16 kernels for this one and headwise's own do not take it: no gain to expect.
_NO_GAIN = square("bfloat16-512x64", 512, 64, None, "bfloat16")

QUICK: tuple[Case, ...] = (_CAUSAL_1024, _window(2048), _DECODE, _SHORT, _NO_GAIN)

EVERYDAY: tuple[Case, ...] = (
    square("full-1024x64", 1024, 64, None),
    _CAUSAL_1024,
    square("full-4096x64", 4096, 64, None),
    square("causal-4096x64", 4096, 64, Causal()),
    square("causal-3001x80", 3001, 80, Causal()),
    _window(4096),
    _DECODE,
    square("short-8", 8, 64, None),
    _SHORT,
    square("short-32", 32, 64, None),
    _NO_GAIN,
)
