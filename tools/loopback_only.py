"""Run a command in a separate network namespace with only loopback.

    python tools/loopback_only.py COMMAND [ARGUMENT ...]

Tests and the real clients that they start can only reach each other. If the system does not allow a
namespace, the command prints a message and runs in the usual network.
"""

import ctypes
import fcntl
import os
import signal
import socket
import struct
import sys
from pathlib import Path
from typing import NoReturn

NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000  # of <linux/sched.h>
GET_FLAGS, SET_FLAGS = 0x8913, 0x8914  # of <linux/sockios.h>
UP = 1


def main() -> NoReturn:
    command = sys.argv[1:]
    if not command:
        sys.exit(__doc__)
    try:
        leave_network()
    except (OSError, AttributeError) as error:
        print(f"no network namespace ({error}): using the usual network", file=sys.stderr)
    # Background jobs of a shell ignore Ctrl-C, which their child processes would inherit.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.stdout.flush()
    os.execvp(command[0], command)


def leave_network() -> None:
    """Move this process into a new network namespace and bring its loopback up.

    Without root, this uses a user namespace that maps the user's id to itself, in which the process
    has the required capabilities.
    """
    user, group = os.getuid(), os.getgid()
    _unshare(NEW_NETWORK if user == 0 else NEW_NETWORK | NEW_USER)
    if user != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh", b"lo", 0)
        flags = struct.unpack("16sh", fcntl.ioctl(any_socket, GET_FLAGS, request))[1]
        fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sh", b"lo", flags | UP))


def _unshare(flags: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    main()
