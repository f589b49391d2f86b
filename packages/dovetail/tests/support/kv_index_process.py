"""Run Dynamo's `SelectionService`: a JSON command per line on stdin, a JSON reply on stdout.

It runs in the interpreter that has Dynamo, where Dovetail is not installed. A command is the name
of a method and its argument.
"""

import asyncio
import inspect
import json
import sys
from typing import Any

from dynamo.llm import SelectionService  # type: ignore[import-not-found]


async def call(service: Any, name: str, argument: Any) -> dict[str, Any]:
    if name == "upsert_worker":  # JSON has only strings as keys
        endpoints = argument["kv_events_endpoints"]
        argument["kv_events_endpoints"] = {int(rank): at for rank, at in endpoints.items()}
    try:
        result = getattr(service, name)(argument)
        return {"result": await result if inspect.isawaitable(result) else result}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


async def main() -> None:
    service = SelectionService(indexer_threads=1)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        reply = await call(service, *json.loads(line))
        print(json.dumps(reply, default=str), flush=True)
    service.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
