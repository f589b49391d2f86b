"""The child process of llama.cpp's server.

The server is private: it listens on a unix socket in a folder that only the current user can
access, or on a loopback port that the system selects. It requires a key that is generated at each
start.
"""

import importlib.util
import re
import secrets
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec

from dovetail.engines.llamacpp.capacity import default_thread_count
from dovetail.engines.process import EngineProcess, ProcessSpec
from dovetail.net.http_client import Endpoint
from dovetail.settings.installation import install_command
from dovetail_model import EngineUnavailable

PositiveInt = Annotated[int, msgspec.Meta(ge=1)]


class LlamaCppOptions(msgspec.Struct, frozen=True):
    """The engine's options, by the names in the documentation. None selects a default.

    `slots`: generations that run at once, each with its own context window. Memory use grows with
    them.
    `host_cache_mib`: host memory for prompts that were evicted from their slot, so that more
    sessions than slots retain their cached prefix.
    `batch`: tokens per prefill batch. Between two batches a generation can be cancelled, and
    another one can run.
    `adapter`: a GGUF file with a LoRA adapter, which is applied to the model.
    `logs`: forward llama.cpp's log.
    `tcp`: listen on a loopback port, which is required on systems without unix sockets.
    """

    slots: PositiveInt = 2
    threads: PositiveInt | None = None
    gpu_layers: int | None = None
    batch: PositiveInt = 512
    host_cache_mib: int = 1024
    adapter: str | None = None
    logs: bool = False
    tcp: bool = False
    start_timeout: float = 600.0


CHILD_SCRIPT = Path(__file__).with_name("child.py")
LOG_LEVEL_ERROR, LOG_LEVEL_INFO = 1, 3  # llama.cpp's own levels
ERROR_LINE_PREFIX = re.compile(r"^[\d.]+ E +")  # time and level of an error in the log


class LlamaCppProcess(EngineProcess):
    """One server process, which can be started only once. `start` returns the endpoint."""

    __slots__ = ("_options",)

    def __init__(self, options: LlamaCppOptions) -> None:
        self._options = options
        super().__init__(
            ProcessSpec(
                name="llama.cpp",
                command=(sys.executable, "-P", str(CHILD_SCRIPT)),
                start_timeout=options.start_timeout,
                forward_logs=options.logs,
            )
        )

    async def start(self, model: Path, context_length: int) -> Endpoint:
        """Load the model. Raise `EngineUnavailable` with the reason if that fails."""
        if importlib.util.find_spec("xllamacpp") is None:
            raise EngineUnavailable(
                f"the engine 'llamacpp' requires the package xllamacpp: "
                f"{install_command('llamacpp')}"
            )
        key = secrets.token_urlsafe(32)
        config = {
            "model": str(model),
            "adapter": self._options.adapter,
            "params": self._params(context_length, key),
            "threads": self._options.threads or default_thread_count(),
        }
        try:
            response = await self._child.start(config)
            if "address" not in response:
                reason = (
                    self._start_failure_reason() or response.get("error") or self.describe_exit()
                )
                raise EngineUnavailable(f"llama.cpp cannot serve {model}: {reason}")
        except BaseException:
            await self.stop()
            raise
        return Endpoint.parse(response["address"], {"authorization": f"Bearer {key}"})

    def _params(self, context_length: int, key: str) -> dict[str, Any]:
        options = self._options
        socket = None if options.tcp else self._socket.create("llama.sock")
        params: dict[str, Any] = {
            "n_ctx": context_length * options.slots,
            "n_parallel": options.slots,
            "kv_unified": False,  # each slot has its own context window
            "ctx_shift": False,  # never truncate a prompt silently
            "n_batch": options.batch,
            "cache_ram_mib": options.host_cache_mib,
            "hostnames": [socket or "127.0.0.1"],
            "port": 0,
            "api_keys": [key],
            "n_threads_http": options.slots + 4,
            "endpoint_slots": True,
            "ui": False,
            "offline": True,
            "verbosity": LOG_LEVEL_INFO if options.logs else LOG_LEVEL_ERROR,
        }
        if options.gpu_layers is not None:
            params["n_gpu_layers"] = options.gpu_layers
        return params

    def _start_failure_reason(self) -> str:
        """Return why the server did not start, from its log: the first error is the precise one."""
        log = self._child.log
        errors = [ERROR_LINE_PREFIX.sub("", line) for line in log if ERROR_LINE_PREFIX.match(line)]
        if any("insufficient memory" in text or "allocate" in text for text in errors):
            return f"not enough memory for this context length and number of slots ({errors[0]})"
        return errors[0] if errors else ""
