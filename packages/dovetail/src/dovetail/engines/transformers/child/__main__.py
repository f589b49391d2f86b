"""The child process: loads a model and serves it until the parent closes its stdin.

It is run by its path, with an interpreter that has torch but may not have Dovetail: the parent
passes Dovetail's import paths. Input: one line of JSON on stdin, a `TransformersChildConfig`.
Output: one line of JSON on stdout, the address or an error. The process exits at the end of stdin,
so it never outlives its parent.
"""

import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any


def main() -> None:
    report = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries goes to the log
    config = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    sys.path.extend(config["paths"])
    serve: Callable[[], None] | None = None
    try:
        response, serve = _prepare(config)
    except ModuleNotFoundError as fault:
        hint = (
            "pip install 'dovetail[transformers]', "
            "or set the option python to an interpreter that has it"
        )
        response = {"error": f"{fault} ({hint})"}
    except Exception as fault:
        response = {"error": f"{fault}"}
    print(json.dumps(response), file=report, flush=True)
    if serve is not None:
        serve()
    # Generations may be running: exiting at once ends them faster than stopping the server.
    os._exit(0 if serve is not None else 1)


def _prepare(config: dict[str, Any]) -> tuple[dict[str, Any], Callable[[], None]]:
    from dovetail.engines.transformers.child.server import prepare_server

    return prepare_server(config)


def _exit_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main()
