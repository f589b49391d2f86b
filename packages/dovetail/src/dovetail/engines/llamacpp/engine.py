"""llama.cpp as a token engine, over the native API of its server."""

import asyncio
from pathlib import Path

from dovetail.engines.engine import (
    EngineCapabilities,
    EngineHealth,
    EngineRequest,
    TokenSink,
    check_prompt_length,
)
from dovetail.engines.llamacpp.capacity import (
    MIN_CONTEXT_TOKENS,
    SlotPool,
    available_memory_bytes,
    fit_context_length,
    trained_context_length,
)
from dovetail.engines.llamacpp.frames import LlamaCppFrameReader, TokenIdRecovery
from dovetail.engines.llamacpp.process import LlamaCppOptions, LlamaCppProcess
from dovetail.engines.llamacpp.request import encode_request, error_from_status
from dovetail.engines.timeouts import HEALTH_TIMEOUTS
from dovetail.engines.token_stream import TokenStreamReader
from dovetail.net.http_client import ClientRequest, Endpoint, Timeouts, fetch, send_request
from dovetail_model import DovetailError, EngineUnavailable
from dovetail_tokenizers import Tokenizer, read_gguf_metadata

#: The server sends a keep-alive every 30 s, no matter how long a prefill takes.
GENERATE_TIMEOUTS = Timeouts(connect=10.0, read=120.0)


class LlamaCppEngine:
    """The engine for one GGUF file. `context_length` defaults to what fits into memory."""

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
        self._process = LlamaCppProcess(self._options)
        self._slots = SlotPool(self._options.slots)
        self._endpoint: Endpoint | None = None
        self._recovery: TokenIdRecovery | None = None
        window = context_length or self._fit_context_length()
        self.capabilities = EngineCapabilities(
            constraints=("gbnf",),
            sampling=frozenset(("ignore_eos", "logit_bias")),
            logprobs=True,
            cached_tokens=True,
            context_length=window,
            local=True,
            kv_tokens=None if window is None else window * self._options.slots,
        )

    @property
    def endpoint(self) -> Endpoint | None:
        """The address of the server, with its key; None if it is not running."""
        return self._endpoint

    @property
    def pid(self) -> int | None:
        """The process id of the server."""
        return self._process.pid

    async def start(self) -> None:
        """Load the model in a child process."""
        if self._endpoint is not None:
            return
        try:
            metadata = await asyncio.to_thread(read_gguf_metadata, self._path)
        except (OSError, ValueError) as fault:
            reason = "no such file" if isinstance(fault, FileNotFoundError) else str(fault)
            raise EngineUnavailable(f"llama.cpp cannot serve {self._path}: {reason}") from fault
        length = (
            self.capabilities.context_length
            or trained_context_length(metadata)
            or MIN_CONTEXT_TOKENS
        )
        self._recovery = await asyncio.to_thread(TokenIdRecovery, self._tokenizer)
        self._process = LlamaCppProcess(self._options)
        self._slots = SlotPool(self._options.slots)
        self._endpoint = await self._process.start(self._path, length)

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None:
        """Push deltas as they arrive.

        Cancelling closes the connection, which aborts the generation.
        """
        endpoint, recovery = self._endpoint, self._recovery
        if endpoint is None or recovery is None:
            raise EngineUnavailable("the engine 'llamacpp' is not running")
        check_prompt_length(request, self.capabilities.context_length)
        slots, process = self._slots, self._process
        slot = await slots.acquire(request.session, request.prompt)
        reader = LlamaCppFrameReader(request, self._tokenizer, recovery)
        stream = TokenStreamReader(reader.read, sink)
        try:
            client_request = ClientRequest(
                "POST",
                "/completion",
                encode_request(request, slot.number),
                timeouts=GENERATE_TIMEOUTS,
            )
            async with send_request(endpoint, client_request) as response:
                if response.status != 200:
                    raise error_from_status(response.status, await response.read())
                await response.stream_to(stream.push, stream.drain)
            if not stream.finished:
                raise EngineUnavailable(
                    "llama.cpp closed the stream before the output was complete"
                )
        except EngineUnavailable as fault:
            await process.raise_exit_error(fault)
        finally:
            slots.release(slot, reader.generated_ids, ends_session=request.ends_session)

    async def health(self) -> EngineHealth:
        """Return whether the server responds, with its slots and the counts of recovered ids."""
        if self._endpoint is None:
            return EngineHealth(False, "not started")
        if not self._process.alive:
            return EngineHealth(False, self._process.describe_exit())
        try:
            status, _ = await fetch(
                self._endpoint, ClientRequest("GET", "/health", timeouts=HEALTH_TIMEOUTS)
            )
        except DovetailError as error:
            return EngineHealth(False, error.message)
        return EngineHealth(
            status == 200, "" if status == 200 else f"status {status}", self._health_facts()
        )

    async def stop(self) -> None:
        """Stop the process, which ends all running generations."""
        self._endpoint = None
        await self._process.stop()

    def _health_facts(self) -> dict[str, int]:
        facts = {"slots": self._slots.count, "slots_busy": self._slots.busy_count}
        if self._recovery is not None:
            facts["ids_recovered"] = self._recovery.recovered
            facts["ids_doubtful"] = self._recovery.ambiguous
        return facts

    def _fit_context_length(self) -> int | None:
        """Return the context length that fits.

        None if the file is unreadable (`start` reports it).
        """
        try:
            metadata = read_gguf_metadata(self._path)
            return fit_context_length(
                metadata, self._path, self._options.slots, available_memory_bytes()
            )
        except (OSError, ValueError):
            return None
