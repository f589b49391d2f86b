"""Reload API keys and certificates on change and on SIGHUP."""

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
    """Keep keys and certificate up to date while the block runs."""

    def reload() -> None:
        keys.reload()
        if certificate is not None:
            certificate.reload()

    loop = asyncio.get_running_loop()
    handles_sighup = not has_terminal()
    if handles_sighup:
        loop.add_signal_handler(signal.SIGHUP, reload)
    watch_task = None if certificate is None else asyncio.create_task(certificate.watch())
    try:
        yield
    finally:
        if handles_sighup:
            loop.remove_signal_handler(signal.SIGHUP)
        if watch_task is not None:
            watch_task.cancel()
            with suppress(asyncio.CancelledError):
                await watch_task


def has_terminal() -> bool:
    """Whether a terminal is attached: there, SIGHUP means that the terminal is gone."""
    try:
        return sys.stdin is not None and os.isatty(sys.stdin.fileno())
    except (OSError, ValueError):
        return False
