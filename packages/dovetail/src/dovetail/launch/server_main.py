"""`python -m dovetail.launch.server_main ARGUMENTS`: a Dovetail that exits with its parent.

It exits when its stdin is closed, even if the parent was killed.
"""

import runpy
import sys

from dovetail.server.process import exit_with_parent

if __name__ == "__main__":
    exit_with_parent()
    sys.argv[0] = "dovetail"
    runpy.run_module("dovetail", run_name="__main__")
