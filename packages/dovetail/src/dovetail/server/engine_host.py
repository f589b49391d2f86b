"""`python -m dovetail.server.engine_host`: serve a local engine to all worker processes."""

import asyncio
import signal
import sys
from contextlib import AbstractContextManager, nullcontext

import msgspec
import uvicorn
import uvloop

from dovetail.engines.completion_server.app import CompletionsServer
from dovetail.engines.completion_server.model import DEFAULT_MAX_MODEL_LEN, CompletionModel
from dovetail.engines.hosted import HOSTED_MODEL_NAME, describe_engine
from dovetail.net.listener import ListenAddress, freeze_gc, open_listener, uvicorn_config
from dovetail.server.build import SETUP_ERRORS, build_local_engine
from dovetail.server.process import (
    EngineHostSpec,
    exit_with_parent,
    hold_runtime_dir,
    receive_spec,
    report_ready,
)
from dovetail.telemetry.log import configure_logging


def main() -> int:
    """Serve the engine until stopped. Setup errors are printed in one line."""
    spec = receive_spec(EngineHostSpec)
    configure_logging(spec.config.log_format, spec.config.log_level)
    exit_with_parent()
    hold_runtime_dir(spec.socket.parent)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(spec))
    except SETUP_ERRORS as error:
        sys.stderr.write(f"dovetail serve: {error}\n")
        return 1
    return 0


async def _serve(spec: EngineHostSpec) -> None:
    model, engine = build_local_engine(spec.config)
    await engine.start()
    try:
        window = engine.capabilities.context_length or model.context_length or DEFAULT_MAX_MODEL_LEN
        # Workers send the stop tokens with each request.
        completion_model = CompletionModel((HOSTED_MODEL_NAME,), model.tokenizer, (), window)
        app = CompletionsServer(engine, completion_model, api_key=spec.key)
        spec.socket.unlink(missing_ok=True)
        listener, _ = open_listener(ListenAddress(path=spec.socket))
        spec.socket.chmod(0o600)
        freeze_gc()
        report_ready({"traits": msgspec.json.encode(describe_engine(engine)).decode()})
        server = _HostServer(uvicorn_config(app))
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, server.stop)
        await server.serve([listener])
    finally:
        await engine.stop()


class _HostServer(uvicorn.Server):
    """A server without uvicorn's signal handlers: they re-raise signals before the engine stops."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()

    def stop(self) -> None:
        self.should_exit = True


if __name__ == "__main__":
    sys.exit(main())
