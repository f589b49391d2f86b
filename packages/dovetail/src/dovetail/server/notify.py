"""What a service manager is told of the server's state, where one wants to know (sd_notify)."""

import os
import socket
import time
from contextlib import suppress

NOTIFY_SOCKET_VARIABLE = "NOTIFY_SOCKET"


def notify(state: str) -> None:
    """Tells `READY=1`, `STOPPING=1` or `RELOADING=1`. Where nobody listens, nothing happens."""
    address = os.environ.get(NOTIFY_SOCKET_VARIABLE)
    if not address or not hasattr(socket, "AF_UNIX"):
        return
    if address.startswith("@"):  # systemd's spelling of a name that stands in no folder
        address = f"\0{address[1:]}"
    if state == "RELOADING=1":
        state += f"\nMONOTONIC_USEC={time.monotonic_ns() // 1000}"
    # Whoever does not hear it has gone, or has not been there: no reason to fail.
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(address)
        sender.sendall(state.encode())
