"""`python -m dovetail.launch.server_main ARGUMENTS`: a Dovetail that ends with its parent.

It terminates at the end of its stdin, however the parent ended.
"""

import os
import runpy
import signal
import sys
import threading


def _terminate_on_stdin_eof() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_terminate_on_stdin_eof, daemon=True).start()
    sys.argv[0] = "dovetail"
    runpy.run_module("dovetail", run_name="__main__")
