"""Convert panics of native extensions to errors that every handler catches."""

import asyncio
from contextlib import AbstractContextManager

#: Exceptions below `BaseException` that stop a task, a generator or the process.
_CONTROL_FLOW = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit)


class NativePanic(Exception):
    """A native extension panicked."""


class _PanicConverter:
    """Converts the exception of a block. It has no state, so that all blocks share one object."""

    __slots__ = ()

    def __enter__(self) -> None:
        """Do nothing: only an exception needs work."""

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        if isinstance(error, BaseException) and not isinstance(error, (Exception, *_CONTROL_FLOW)):
            raise NativePanic(f"{type(error).__name__}: {error}") from error


_CONVERTER = _PanicConverter()


def convert_panics() -> AbstractContextManager[None]:
    """Raise `NativePanic` in place of an exception that derives only from `BaseException`.

    Rust extensions raise such an exception when they panic. Handlers for `Exception` would not
    catch it, and the client would get no error in the format of its API.
    """
    return _CONVERTER
