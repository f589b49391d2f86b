"""llama.cpp as a token engine: ids in, ids out, over the native API of its server."""

import asyncio
from pathlib import Path

from dovetail.engines.engine import Abilities, EngineRequest, Health, Listener, check_length
from dovetail.engines.llamacpp.capacity import SMALLEST, free_memory, trained_window, window
from dovetail.engines.llamacpp.frames import FrameReader
from dovetail.engines.llamacpp.options import LlamaCppOptions
from dovetail.engines.llamacpp.process import ServerProcess
from dovetail.engines.llamacpp.recovery import Recovery
from dovetail.engines.llamacpp.request import body, refusal
from dovetail.engines.llamacpp.slots import Slots
from dovetail.engines.telling import Telling
from dovetail.net.http_client import ClientRequest, Endpoint, Timeouts, fetch, send_request
from dovetail_model import DovetailError, EngineUnavailable
from dovetail_tokenizers import Tokenizer, read_gguf_metadata

#: The server sends a sign of life every 30 s, however long a prompt takes.
PATIENCE = Timeouts(connect=10.0, read=120.0)
HEALTH_PATIENCE = Timeouts(connect=2.0, read=5.0)


class LlamaCppEngine:
    """The engine for one GGUF file. Without a `context_length` it is as long as memory allows."""

    name = "llamacpp"

    def __init__(
        self,
        path: Path,
        tokenizer: Tokenizer,
        *,
        context_length: int | None = None,
        options: LlamaCppOptions | None = None,
    ) -> None:
        self._path = path
        self._tokenizer = tokenizer
        self._options = options or LlamaCppOptions()
        self._process = ServerProcess(self._options)
        self._slots = Slots(self._options.slots)
        self._endpoint: Endpoint | None = None
        self._recovery: Recovery | None = None
        self.abilities = Abilities(
            constraints=("gbnf",),
            logprobs=True,
            cached_tokens=True,
            context_length=context_length or self._window(),
            local=True,
        )

    @property
    def endpoint(self) -> Endpoint | None:
        """Where the server listens, with its key; None while it does not."""
        return self._endpoint

    @property
    def pid(self) -> int | None:
        """The server's process."""
        return self._process.pid

    async def start(self) -> None:
        """Loads the model, in a process of its own."""
        if self._endpoint is not None:
            return
        try:
            metadata = await asyncio.to_thread(read_gguf_metadata, self._path)
        except (OSError, ValueError) as fault:
            reason = "no such file" if isinstance(fault, FileNotFoundError) else str(fault)
            raise EngineUnavailable(f"llama.cpp cannot serve {self._path}: {reason}") from fault
        length = self.abilities.context_length or trained_window(metadata) or SMALLEST
        self._recovery = await asyncio.to_thread(Recovery, self._tokenizer)
        self._process = ServerProcess(self._options)
        self._slots = Slots(self._options.slots)
        self._endpoint = await self._process.start(self._path, length)

    async def generate(self, request: EngineRequest, listener: Listener) -> None:
        """Deltas as they come. Leaving it drops the connection, at which llama.cpp stops."""
        endpoint, recovery = self._endpoint, self._recovery
        if endpoint is None or recovery is None:
            raise EngineUnavailable("the engine 'llamacpp' is not running")
        check_length(request, self.abilities.context_length)
        slots, process = self._slots, self._process
        slot = await slots.take(request.session, request.prompt)
        reader = FrameReader(request, self._tokenizer, recovery)
        telling = Telling(reader.read, listener)
        try:
            call = ClientRequest("POST", "/completion", body(request, slot.number), timeouts=PATIENCE)
            async with send_request(endpoint, call) as reply:
                if reply.status != 200:
                    raise refusal(reply.status, await reply.read())
                await reply.stream_to(telling.take, telling.wait)
            if not telling.over:
                raise EngineUnavailable("llama.cpp ended its answer without a word")
        except EngineUnavailable as fault:
            await process.explain(fault)
        finally:
            slots.give_back(slot, reader.said)

    async def health(self) -> Health:
        """Whether the server answers, and its account of slots and of recovered ids."""
        if self._endpoint is None:
            return Health(False, "not started")
        if not self._process.alive:
            return Health(False, self._process.epitaph())
        try:
            status, _ = await fetch(
                self._endpoint, ClientRequest("GET", "/health", timeouts=HEALTH_PATIENCE)
            )
        except DovetailError as error:
            return Health(False, error.message)
        return Health(status == 200, "" if status == 200 else f"status {status}", self._facts())

    async def stop(self) -> None:
        """Ends the process, and with it everything that runs there."""
        self._endpoint = None
        await self._process.stop()

    def _facts(self) -> dict[str, int]:
        facts = {"slots": self._slots.count, "slots_busy": self._slots.busy}
        if self._recovery is not None:
            facts["ids_recovered"] = self._recovery.recovered
            facts["ids_doubtful"] = self._recovery.doubtful
        return facts

    def _window(self) -> int | None:
        """The window that fits; None if the file cannot be read, of which `start` will tell."""
        try:
            metadata = read_gguf_metadata(self._path)
            return window(metadata, self._path, self._options.slots, free_memory())
        except (OSError, ValueError):
            return None
