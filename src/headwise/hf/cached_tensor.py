"""What a cache hands to a model: tensors to everybody, and to our attention a place to read."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, device, dtype
from torch._C import _disabled_torch_function_impl
from torch._ops import OpOverload
from typing_extensions import override

from headwise.errors import CacheError
from headwise.patterns import Pattern


@runtime_checkable
class Reading(Protocol):
    """Keys and values of one layer that are not read yet."""

    def plain(self, side: int) -> Tensor:
        """Return the keys (0) or the values (1) as a plain tensor."""

    def attend(self, query: Tensor, pattern: Pattern, dropout_p: float, **extras: Any) -> Tensor:
        """Attend to them where they lie."""

    def is_with(self, other: "Reading") -> bool:
        """Say whether the other one reads the same tokens of the same layer."""


class CachedTensor(Tensor):
    """Keys or values that lie in a cache in a form of their own: 8 bits, pages, a window.

    headwise's attention reads them where they are. Every other operation of torch sees an ordinary
    tensor, made once when it is first needed. Writing to it is refused, for the cache would not
    notice.
    """

    reading: Reading
    side: int

    @staticmethod
    def __new__(  # noqa: D102
        cls: "type[CachedTensor]",
        reading: Reading,
        side: int,
        size: Sequence[int],
        kind: dtype,
        place: device,
    ) -> "CachedTensor":
        made: CachedTensor = Tensor._make_wrapper_subclass(cls, size, dtype=kind, device=place)
        made.reading, made.side = reading, side
        return made

    def plain(self) -> Tensor:
        """Return an ordinary tensor with the same numbers."""
        return self.reading.plain(self.side)

    @override
    def numpy(self, *, force: bool = False) -> Any:
        return self.plain().numpy(force=force)

    @override
    def tolist(self) -> Any:
        return self.plain().tolist()

    @override
    def data_ptr(self) -> int:
        return self.plain().data_ptr()

    @override
    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return self.plain().clone()

    @override
    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.plain().clone().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    @override
    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        return f"CachedTensor({('keys', 'values')[self.side]}, {tuple(self.shape)}, {self.dtype})"

    __torch_function__ = _disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: OpOverload,
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        """Run one operation of torch on ordinary tensors."""
        del types
        given = dict(kwargs or {})
        if func._schema.is_mutable:
            _refuse_writing(func, args, given)
        return func(*map(_plain, args), **{name: _plain(part) for name, part in given.items()})


def reading_of(query: Tensor, key: Tensor, value: Tensor) -> Reading | None:
    """Return what reads ``key`` and ``value`` in place for ``query``, where there is such a way."""
    if not isinstance(key, CachedTensor) or not isinstance(value, CachedTensor):
        return None
    same = (key.side, value.side) == (0, 1) and key.reading.is_with(value.reading)
    return key.reading if same and query.shape[0] == key.shape[0] else None


def ordinary(tensor: Tensor) -> Tensor:
    """Return the tensor itself, or what a cached one stands for."""
    return tensor.plain() if isinstance(tensor, CachedTensor) else tensor


def _plain(argument: object) -> object:
    if isinstance(argument, CachedTensor):
        return argument.plain()
    if isinstance(argument, (list, tuple)):
        return type(argument)(_plain(part) for part in argument)
    return argument


def _refuse_writing(func: OpOverload, args: Sequence[object], given: Mapping[str, Any]) -> None:
    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        found = args[number] if number < len(args) else given.get(argument.name)
        parts = found if isinstance(found, (list, tuple)) else (found,)
        if any(isinstance(part, CachedTensor) for part in parts):
            raise CacheError(
                f"{func.overloadpacket.__name__}: cannot write to a CachedTensor, which stands for "
                "what a cache holds\n"
                "  hint: write to a copy, tensor.clone(); tokens enter a cache by cache.update"
            )
