"""The server's process: several instances of the HTTP application over one scripted engine.

It reads a command as one line of JSON on stdin, writes the ports as one line to stdout, and stops
at the end of stdin. Each application has its own settings and ledger; they share the engine and its
cache.
"""

import asyncio
import json
import logging
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from benchmarks.gpu.claude import MODEL, session_id
from benchmarks.gpu.process_commands import Serve
from benchmarks.gpu.scripted_engine import Notebook, Script, ScriptedOutputEngine
from benchmarks.gpu.sessions import make_session
from dovetail.engines.transformers.engine import TransformersEngine
from dovetail.engines.transformers.options import TransformersOptions
from dovetail.http.app import App
from dovetail.http.options import build_http_options
from dovetail.models.loader import Model, load_model
from dovetail.net.listener import freeze_gc
from dovetail.pipeline.preparation import ChatPreparer
from dovetail.pipeline.registry import ModelRegistry, TokenModel
from dovetail.routing.pool import ReplicaPool
from dovetail.server.build import default_sampling, open_keyring, open_ledger, preparation_settings
from dovetail.server.http_server import create_server, run_server, wait_until_started
from dovetail.settings.config import Config
from dovetail_tokenizers import Tokenizer

#: The applications, by name: what differs from the defaults.
FRONTS: dict[str, dict[str, Any]] = {
    "default": {},
    "unstripped": {"strip_anthropic_preamble": False},
    "forgetful": {"replay": "client"},
}
END = "<|im_end|>"


def make_script(names: list[str], tokenizer: Tokenizer) -> Script:
    """Return the ids of the scripted output of the named sessions, built on first use."""
    by_id = {session_id(name): name for name in names}
    known: dict[str, list[list[int]]] = {}

    def script(session: str, number: int) -> list[int] | None:
        name = by_id.get(session)
        if name is None:
            return None
        if session not in known:
            outputs = make_session(name, lambda text: len(tokenizer.encode(text))).outputs
            known[session] = [
                [*tokenizer.encode(text), tokenizer.controls[END]] for text in outputs
            ]
        output_ids = known[session]
        return output_ids[min(number, len(output_ids) - 1)]

    return script


def make_app(
    model: Model, scripted_engine: ScriptedOutputEngine, config: Config, folder: Path
) -> App:
    """Build an application as `dovetail serve` does, except for the engine."""
    preparer = ChatPreparer(
        model,
        open_ledger(config, folder),
        open_keyring(config, folder),
        preparation_settings(config),
    )
    model_entry = TokenModel(
        names=(MODEL,),
        model=model,
        preparer=preparer,
        engine=ReplicaPool([scripted_engine]),
        max_context=config.context_length,
        default_sampling=default_sampling(config),
    )
    return App(ModelRegistry([model_entry]), build_http_options(config))


class AppServer:
    """An application on its own port."""

    def __init__(self, app: App) -> None:
        self._place = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self._running = create_server(app)
        self._task = asyncio.create_task(run_server(self._running, [self._place]))
        self.port: int = self._place.getsockname()[1]

    async def started(self) -> None:
        if not await wait_until_started(self._running, self._task):
            raise RuntimeError("an application did not start")

    async def stop(self) -> None:
        self._running.should_exit = True
        await asyncio.gather(self._task, return_exceptions=True)


async def run(order: Serve, report: Callable[[dict[str, Any]], None]) -> None:
    """Serve until stdin ends."""
    folder, path = Path(order.folder), Path(order.model)
    model = load_model(path, tool_parser="hermes", reasoning_parser="qwen3")
    options = msgspec.convert(order.options, TransformersOptions, strict=False)
    engine = TransformersEngine(path, options=options)
    begun = time.perf_counter()
    await engine.start()
    loaded = time.perf_counter() - begun
    fronts: dict[str, AppServer] = {}
    with Notebook(folder) as notebook:
        scripted_engine = ScriptedOutputEngine(
            engine, make_script(order.sessions, model.tokenizer), notebook
        )
        try:
            for name, more in FRONTS.items():
                home = folder / name
                home.mkdir(parents=True, exist_ok=True)
                config = Config(model=MODEL, data_dir=home, **more)
                fronts[name] = AppServer(make_app(model, scripted_engine, config, home))
                await fronts[name].started()
            freeze_gc()  # as `dovetail serve` does
            facts = (await engine.health()).facts or {}
            ports = {name: front.port for name, front in fronts.items()}
            report({"ports": ports, "facts": facts, "load_s": loaded})
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
        finally:
            await asyncio.gather(*(front.stop() for front in fronts.values()))
            await engine.stop()


def main() -> None:
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=Serve)

    def report(message: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()

    try:
        uvloop.run(run(order, report))
    except Exception as fault:
        report({"error": f"{type(fault).__name__}: {fault}"})
        raise


if __name__ == "__main__":
    main()
