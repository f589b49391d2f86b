"""`python -m dovetail.server.engine_host`: serve an engine of this machine to all workers."""

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
    """Serves until told to stop. What is wrong is told in one line."""
    order = receive_spec(EngineHostSpec)
    configure_logging(order.config.log_format, order.config.log_level)
    exit_with_parent()
    hold_runtime_dir(order.socket.parent)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(order))
    except SETUP_ERRORS as error:
        sys.stderr.write(f"dovetail serve: {error}\n")
        return 1
    return 0


async def _serve(order: EngineHostSpec) -> None:
    model, engine = build_local_engine(order.config)
    await engine.start()
    try:
        window = engine.capabilities.context_length or model.context_length or DEFAULT_MAX_MODEL_LEN
        # Workers say themselves which tokens end a turn.
        served = CompletionModel((HOSTED_MODEL_NAME,), model.tokenizer, (), window)
        app = CompletionsServer(engine, served, api_key=order.key)
        order.socket.unlink(missing_ok=True)
        listener, _ = open_listener(ListenAddress(path=order.socket))
        order.socket.chmod(0o600)
        freeze_gc()
        report_ready({"traits": msgspec.json.encode(describe_engine(engine)).decode()})
        serving = _HostServer(uvicorn_config(app))
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, serving.stop)
        await serving.serve([listener])
    finally:
        await engine.stop()


class _HostServer(uvicorn.Server):
    """Leaves signals to us: it would raise them again before the engine is stopped."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()

    def stop(self) -> None:
        self.should_exit = True


if __name__ == "__main__":
    sys.exit(main())
