"""The process that llama.cpp runs in: started, listened to, ended.

Nobody but us reaches its server: it listens on a unix socket in a folder that only this user can
enter, or on a loopback port that the system picks, and asks for a key made anew at each start.
"""

import asyncio
import importlib.util
import logging
import os
import re
import secrets
import shutil
import sys
import tempfile
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from dovetail.engines.llamacpp.options import LlamaCppOptions
from dovetail.engines.llamacpp.sizing import default_threads
from dovetail.engines.wire import Endpoint
from dovetail_model import EngineUnavailable

CHILD = Path(__file__).with_name("child.py")
LOG = logging.getLogger(__name__)
LOG_LINES = 60  # kept to tell why a start failed
QUIET, TALKATIVE = 1, 3  # llama.cpp's own levels: errors only, information
LONGEST_SOCKET = 100  # bytes; systems allow 104 to 108
STAMP = re.compile(r"^[\d.]+ E +")  # time and level of an error in the log
GRACE = 10.0  # seconds to end by itself


class ServerProcess:
    """One running server. `start` gives the endpoint; a process is not started twice."""

    __slots__ = ("_child", "_folder", "_log", "_options", "_pump", "_ready")

    def __init__(self, options: LlamaCppOptions) -> None:
        self._options = options
        self._child: asyncio.subprocess.Process | None = None
        self._pump: asyncio.Task[None] | None = None
        self._folder: str | None = None
        self._log: deque[str] = deque(maxlen=LOG_LINES)
        self._ready = False

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.returncode is None

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    async def start(self, model: Path, context_length: int) -> Endpoint:
        """Loads the model. Raises `EngineUnavailable` with the reason if that fails."""
        if importlib.util.find_spec("xllamacpp") is None:
            raise EngineUnavailable(
                "the engine 'llamacpp' needs the package xllamacpp: "
                "pip install 'dovetail[llamacpp]'"
            )
        key = secrets.token_urlsafe(32)
        wanted = {
            "model": str(model),
            "params": self._params(context_length, key),
            "threads": self._options.threads or default_threads(),
        }
        try:
            address = await self._launch(wanted)
        except BaseException:
            await self.stop()
            raise
        return Endpoint.parse(address, {"authorization": f"Bearer {key}"})

    async def stop(self) -> None:
        """Ends the process and waits for it. May be called at any time, and twice."""
        if self._child is not None and self._child.stdin is not None:
            self._child.stdin.close()
            # While it loads a model it hears nothing.
            if not await self.ended(GRACE if self._ready else 0.0):
                with suppress(ProcessLookupError):
                    self._child.kill()
                await self._child.wait()
        if self._pump is not None:
            await self._pump
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    async def ended(self, patience: float) -> bool:
        """Whether the process ends within so many seconds."""
        if self._child is None:
            return True
        try:
            async with asyncio.timeout(patience):
                await self._child.wait()
        except TimeoutError:
            return False
        return True

    def epitaph(self) -> str:
        """How the process ended, in words."""
        code = self._child.returncode if self._child is not None else None
        if code is None:
            return "llama.cpp does not answer"
        if code == -9:
            return "llama.cpp was killed, perhaps because memory ran out"
        return f"llama.cpp died with signal {-code}" if code < 0 else f"llama.cpp ended ({code})"

    async def _launch(self, wanted: dict[str, Any]) -> str:
        self._child = child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", str(CHILD)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is ours to handle
        )
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        self._pump = asyncio.create_task(self._listen(child.stderr))
        try:
            async with asyncio.timeout(self._options.start_timeout):
                child.stdin.write(msgspec.json.encode(wanted) + b"\n")
                line = await child.stdout.readline()
        except TimeoutError as fault:
            limit = self._options.start_timeout
            raise EngineUnavailable(f"llama.cpp was not ready in {limit:g} s") from fault
        except ConnectionError:
            line = b""
        answer = msgspec.json.decode(line, type=dict[str, str]) if line else {}
        if "address" not in answer:
            await child.wait()
            await self._pump
            reason = self._reason() or answer.get("error") or self.epitaph()
            raise EngineUnavailable(f"llama.cpp cannot serve {wanted['model']}: {reason}")
        self._ready = True
        return answer["address"]

    def _params(self, context_length: int, key: str) -> dict[str, Any]:
        options = self._options
        params: dict[str, Any] = {
            "n_ctx": context_length * options.slots,
            "n_parallel": options.slots,
            "kv_unified": False,  # a slot's window is its own
            "ctx_shift": False,  # a prompt is never cut behind our back
            "n_batch": options.batch,
            "cache_ram_mib": options.host_cache_mib,
            "hostnames": [self._host()],
            "port": 0,
            "api_keys": [key],
            "n_threads_http": options.slots + 4,
            "endpoint_slots": True,
            "ui": False,
            "offline": True,
            "verbosity": TALKATIVE if options.logs else QUIET,
        }
        if options.gpu_layers is not None:
            params["n_gpu_layers"] = options.gpu_layers
        return params

    def _host(self) -> str:
        """A unix socket where there are any, else the loopback interface."""
        if self._options.tcp or os.name != "posix":
            return "127.0.0.1"
        self._folder = folder = tempfile.mkdtemp(prefix="dovetail-")
        path = f"{folder}/llama.sock"
        return path if len(os.fsencode(path)) <= LONGEST_SOCKET else "127.0.0.1"

    async def _listen(self, log: asyncio.StreamReader) -> None:
        """Reads the log, so that the child never waits for a reader."""
        with suppress(ValueError):  # a line beyond all measure: the rest is not read
            while line := await log.readline():
                text = line.decode("utf-8", "replace").rstrip()
                self._log.append(text)
                if self._options.logs:
                    LOG.info("llama.cpp: %s", text)

    def _reason(self) -> str:
        """Why it did not start, as far as its log tells: the first complaint is the precise one."""
        complaints = [STAMP.sub("", line) for line in self._log if STAMP.match(line)]
        if any("insufficient memory" in text or "allocate" in text for text in complaints):
            return f"not enough memory for this context and these slots ({complaints[0]})"
        return complaints[0] if complaints else ""
