"""What is measured: sizes, pattern, element type, gradients or not; each case is declared once."""

from dataclasses import dataclass

from headwise.patterns import Causal, Pattern, Window

SHORT_NAMES = {"float32": "", "bfloat16": "-bf16", "float16": "-fp16", "float64": "-fp64"}


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
        batch: Samples.
        backward: Compute gradients of query, key and value as well.
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
    batch: int = 1
    backward: bool = False
    reads: bool = False

    @property
    def sizes(self) -> str:
        """The sizes as people write them."""
        heads = _either(self.q_heads, self.kv_heads)
        length = _either(self.q_len, self.kv_len)
        return f"{self.batch} x {heads} x {length} x {self.head_dim}"

    @property
    def work(self) -> str:
        """What a call computes."""
        return "fwd+bwd" if self.backward else "forward"


def square(
    name: str,
    length: int,
    head_dim: int,
    pattern: Pattern | None,
    dtype: str = "float32",
    *,
    batch: int = 1,
    backward: bool = False,
) -> Case:
    """Return a case with 12 heads and as many queries as keys."""
    return Case(name, 12, 12, length, length, head_dim, pattern, dtype, batch, backward)


def full(length: int, head_dim: int, dtype: str = "float32", *, backward: bool = False) -> Case:
    """Return a case in which all see all."""
    name = f"full-{length}x{head_dim}{_ending(dtype, backward)}"
    return square(name, length, head_dim, None, dtype, backward=backward)


def causal(length: int, head_dim: int, dtype: str = "float32", *, backward: bool = False) -> Case:
    """Return a case in which nobody sees what comes later."""
    name = f"causal-{length}x{head_dim}{_ending(dtype, backward)}"
    return square(name, length, head_dim, Causal(), dtype, backward=backward)


def window(length: int, dtype: str = "float32", *, backward: bool = False) -> Case:
    """Return a case in which each sees itself and the 255 before it."""
    name = f"window-256-of-{length}{_ending(dtype, backward)}"
    return square(name, length, 64, Causal() & Window(255, 0), dtype, backward=backward)


def decode(dtype: str = "float32", *, queries: int = 1) -> Case:
    """Return a step of decoding: few queries, 32 heads, 4,096 keys of 8 heads."""
    name = "decode" if queries == 1 else f"speculative-{queries}"
    name += f"-4096x128{SHORT_NAMES[dtype]}"
    return Case(name, 32, 8, queries, 4096, 128, Causal(), dtype, reads=True)


def short(dtype: str = "float32") -> Case:
    """Return eight short sequences, as of an encoder of sentences."""
    return square(f"short-8x128x64{SHORT_NAMES[dtype]}", 128, 64, None, dtype, batch=8)


def overhead(length: int, *, backward: bool = False) -> Case:
    """Return a call so small that what it costs is the calling."""
    name = f"overhead-{length}{_ending('float32', backward)}"
    return square(name, length, 64, None, backward=backward)


def series(*, backward: bool = False) -> Case:
    """Return hundreds of short sequences with narrow heads, as of a time-series model."""
    name = f"series-256x32x4{_ending('float32', backward)}"
    return Case(name, 8, 8, 32, 32, 4, batch=256, backward=backward)


def no_gain() -> Case:
    """Return a case that headwise's own kernels do not take: torch's attention computes it."""
    return square("full-512x64-fp64", 512, 64, None, "float64")


def _ending(dtype: str, backward: bool) -> str:
    return SHORT_NAMES[dtype] + ("-training" if backward else "")


def _either(queries: int, keys: int) -> str:
    return f"{queries}" if queries == keys else f"{queries}/{keys}"
