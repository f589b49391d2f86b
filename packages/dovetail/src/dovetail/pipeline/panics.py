"""Convert panics of native extensions to errors that every handler catches."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

#: Exceptions below `BaseException` that stop a task, a generator or the process.
_CONTROL_FLOW = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit)


class NativePanic(Exception):
    """A native extension panicked."""


@contextmanager
def convert_panics() -> Iterator[None]:
    """Raise `NativePanic` in place of an exception that derives only from `BaseException`.

    Rust extensions raise such an exception when they panic. Handlers for `Exception` would not
    catch it, and the client would get no error in the format of its API.
    """
    try:
        yield
    except (Exception, *_CONTROL_FLOW):
        raise
    except BaseException as error:
        raise NativePanic(f"{type(error).__name__}: {error}") from error
