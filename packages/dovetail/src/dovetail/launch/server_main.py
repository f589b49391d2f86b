"""`python -m dovetail.launch.server_main ARGUMENTS`: a Dovetail that ends with its parent.

It terminates at the end of its stdin, however the parent ended.
"""

import runpy
import sys

from dovetail.server.process import exit_with_parent

if __name__ == "__main__":
    exit_with_parent()
    sys.argv[0] = "dovetail"
    runpy.run_module("dovetail", run_name="__main__")
