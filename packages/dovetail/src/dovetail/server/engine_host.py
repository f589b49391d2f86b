"""`python -m dovetail.server.engine_host`: serve a local engine to all worker processes."""

import asyncio
import signal
import sys

import uvloop

from dovetail.engines.hosted import describe_hosted
from dovetail.engines.steps.messages import describe_engine
from dovetail.engines.steps.server import StepServer
from dovetail.net.listener import ListenAddress, freeze_gc, open_listener
from dovetail.server.build import SETUP_ERRORS, build_local_engine
from dovetail.server.engines import adapter_names
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
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    _, engine = build_local_engine(spec.config)
    await engine.start()
    try:
        description = describe_engine(engine.name, engine.capabilities)
        spec.socket.unlink(missing_ok=True)
        listener, _ = open_listener(ListenAddress(path=spec.socket))
        spec.socket.chmod(0o600)
        freeze_gc()
        server = StepServer(engine, description, spec.key)
        serving = await server.serve(listener)
        report_ready({"traits": describe_hosted(engine, adapter_names(spec.config))})
        await stopping.wait()
        serving.close()
        server.disconnect_all()
    finally:
        await engine.stop()


if __name__ == "__main__":
    sys.exit(main())
