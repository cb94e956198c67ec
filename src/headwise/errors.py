"""Every exception and warning that headwise raises on purpose."""


class ShapeError(ValueError):
    """Sizes that do not fit together."""


class DtypeError(TypeError):
    """Element types or devices that do not fit together."""


class PatternError(ValueError):
    """A pattern or mask that makes no sense, or not for these sizes."""


class CacheError(RuntimeError):
    """A key/value cache asked for something it cannot do; it is left as it was."""


class BackendRefused(NotImplementedError):
    """The backend that was named will not take these inputs; the message lists every reason."""


class NativeMissingWarning(UserWarning):
    """The compiled core could not be loaded, so slower backends are used."""
