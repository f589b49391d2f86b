"""The child process: runs llama.cpp's server until the parent closes its stdin.

It is a separate process because loading a model holds the interpreter lock the whole time, and
because a crash of native code must not terminate the frontend. This file is run by its path and
imports nothing from Dovetail, so that it starts quickly.

Input: one line of JSON on stdin, the configuration. Output: one line of JSON on stdout, the address
or an error. The process exits at the end of stdin, so it never outlives its parent.
"""

import json
import os
import sys
from importlib import import_module
from typing import Any


def main() -> None:
    report = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of native code goes to the log
    config = json.loads(sys.stdin.buffer.readline())
    try:
        server = _serve(config)
        response = {"address": server.listening_address}
    except Exception as fault:
        server, response = None, {"error": str(fault)}
    print(json.dumps(response), file=report, flush=True)
    if server is not None:
        sys.stdin.buffer.read()
    # Generations may be running: exiting at once ends them faster than stopping the server.
    os._exit(0 if server is not None else 1)


def _serve(config: dict[str, Any]) -> Any:
    xllamacpp = import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = config["model"]
    for name, value in config["params"].items():
        setattr(params, name, value)
    if config.get("adapter"):
        adapter = xllamacpp.CommonAdapterLoraInfo()
        adapter.path, adapter.scale = config["adapter"], 1.0
        params.lora_adapters = [adapter]
    # Fitting layers to the GPU automatically would load the model twice.
    params.fit_params = len(xllamacpp.get_device_info()) > 1
    if config["threads"]:
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = config["threads"]
    return xllamacpp.Server(params)


if __name__ == "__main__":
    main()
