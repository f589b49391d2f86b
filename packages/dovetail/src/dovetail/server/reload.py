"""Files that are read again while the server runs: when they change, and on SIGHUP."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from dovetail.access.auth import ApiKeys
from dovetail.net.tls import TlsCertificate


@asynccontextmanager
async def reload_on_change(
    keys: ApiKeys, certificate: TlsCertificate | None
) -> AsyncIterator[None]:
    """Keeps keys and certificate fresh for as long as the block lasts."""

    def read_again() -> None:
        keys.reload()
        if certificate is not None:
            certificate.reload()

    loop = asyncio.get_running_loop()
    heeded = not has_terminal()
    if heeded:
        loop.add_signal_handler(signal.SIGHUP, read_again)
    looking = None if certificate is None else asyncio.create_task(certificate.watch())
    try:
        yield
    finally:
        if heeded:
            loop.remove_signal_handler(signal.SIGHUP)
        if looking is not None:
            looking.cancel()
            with suppress(asyncio.CancelledError):
                await looking


def has_terminal() -> bool:
    """There SIGHUP says that the terminal is gone, and the server goes with it."""
    try:
        return sys.stdin is not None and os.isatty(sys.stdin.fileno())
    except (OSError, ValueError):
        return False
