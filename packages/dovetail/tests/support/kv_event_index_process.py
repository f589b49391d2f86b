"""Run the index of KV events: a JSON command per line on stdin, a JSON reply on stdout.

It runs in the interpreter that has the extra `kv`. The first line has the settings of the index;
each further line is a prompt, and the reply has its cached leading tokens by replica.
"""

import asyncio
import json
import sys
from array import array

from dovetail.engines.engine import EngineRequest
from dovetail.engines.kv_cache import fetch_kv_cache_info
from dovetail.net.http_client import Endpoint
from dovetail.routing.kv_endpoints import KvEventAddresses
from dovetail.routing.kv_event_index import KvEventIndex
from dovetail.routing.kv_service import create_kv_service


async def main() -> None:
    loop = asyncio.get_running_loop()
    setup = json.loads(sys.stdin.readline())
    index = KvEventIndex(
        create_kv_service(),
        KvEventAddresses(setup["events"], setup["replay"]),
        lambda url: fetch_kv_cache_info("vllm", Endpoint.parse(url)),
    )
    for replica, url in enumerate(setup["urls"]):
        await index.add(replica, url)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        found = await index.find(EngineRequest("r", array("I", json.loads(line)), 1))
        print(json.dumps(found.overlaps), flush=True)
    await index.stop()


if __name__ == "__main__":
    asyncio.run(main())
