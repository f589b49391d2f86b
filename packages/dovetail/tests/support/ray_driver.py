"""Run frontends in a local Ray Serve. It runs in the environment that has Ray.

The first line of standard input is a JSON object: the port, and the arguments of the application.
Further lines are `kill ID` (kills the process of a frontend) and `scale N` (changes the number of
frontends). The end of the input stops Ray.
Each line is followed by a line on standard output.
"""

import json
import sys

import ray
from ray import serve

from dovetail.server.ray import build

APPLICATION = "dovetail"


def main() -> None:
    setup = json.loads(sys.stdin.readline())
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": setup["port"]})
        serve.run(build(setup["arguments"]), name=APPLICATION, route_prefix="/")
        _report("ready")
        for line in sys.stdin:
            command, argument = line.split()
            if command == "kill":
                actor = f"SERVE_REPLICA::{APPLICATION}#Frontend#{argument}"
                ray.kill(ray.get_actor(actor, namespace="serve"), no_restart=True)
            else:
                changed = build({**setup["arguments"], "frontends": int(argument)})
                serve.run(changed, name=APPLICATION, route_prefix="/")
            _report(f"{command} done")
    finally:
        serve.shutdown()
        ray.shutdown()


def _report(text: str) -> None:
    print(f"driver: {text}", flush=True)


if __name__ == "__main__":
    main()
