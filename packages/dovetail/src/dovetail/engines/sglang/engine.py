"""An SGLang server as a token engine: ids in, ids out, over its native `/generate`."""

import asyncio
import logging
from secrets import token_hex

import msgspec

from dovetail.engines.engine import Abilities, EngineRequest, Health, Listener, check_length
from dovetail.engines.sglang.discovery import SERVER_PATHS, ask, health_path
from dovetail.engines.sglang.facts import Facts, facts_of
from dovetail.engines.sglang.faults import WHO, refusal
from dovetail.engines.sglang.frames import FrameReader
from dovetail.engines.sglang.options import SglangOptions
from dovetail.engines.sglang.request import body
from dovetail.engines.telling import Telling
from dovetail.engines.token_ids import Spelling
from dovetail.net.http_client import ClientRequest, Endpoint, ConnectionGroup, Timeouts, fetch, send_request
from dovetail_model import DovetailError, EngineUnavailable
from dovetail_tokenizers import Tokenizer

HEALTH_PATIENCE = Timeouts(connect=2.0, read=5.0)
ABORT_PATIENCE = Timeouts(connect=2.0, read=5.0)

_logger = logging.getLogger(__name__)


class SglangEngine:
    """One server, which belongs to somebody else: it is neither started nor stopped here."""

    name = "sglang"

    def __init__(
        self,
        endpoint: Endpoint,
        tokenizer: Tokenizer,
        *,
        context_length: int | None = None,
        options: SglangOptions | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._tokenizer = tokenizer
        self._context_length = context_length
        self._options = options or SglangOptions()
        self._facts = Facts()
        self._health_path: str | None = None
        self._takes_aborts = True
        self._running: set[str] = set()
        self._lines = ConnectionGroup()
        self._spelling = Spelling()
        self._aborts: set[asyncio.Task[None]] = set()
        self.abilities = self._abilities()

    async def start(self) -> None:
        """Asks the server how it was started. Raises if nobody answers."""
        self._facts = facts_of(await ask(self._endpoint, *SERVER_PATHS), self._options)
        self.abilities = self._abilities()
        self._takes_aborts = True
        self._health_path = await health_path(self._endpoint)
        if self._facts.incremental is False:
            _logger.info(
                "%s repeats all ids in every frame: --incremental-streaming-output spares it that",
                WHO,
            )

    async def generate(self, request: EngineRequest, listener: Listener) -> None:
        """Deltas as they come. Leaving it drops the connection and tells SGLang to stop."""
        check_length(request, self.abilities.context_length)
        # An abort means every request whose id begins with it, so none may be another's beginning.
        rid = f"{token_hex(8)}-{request.id}"
        reader = FrameReader(request, self._tokenizer)
        telling = Telling(reader.read, listener)
        patience = Timeouts(read=self._options.silence)
        asked = body(request, self._spelling, rid, self._facts.priority)
        call = ClientRequest("POST", "/generate", asked, timeouts=patience)
        wanted = True
        self._running.add(rid)
        try:
            self._check_running(rid)
            async with send_request(self._endpoint, call, self._lines) as reply:
                self._check_running(rid)
                if reply.status != 200:
                    wanted = False
                    raise refusal(reply.status, await reply.read())
                await reply.stream_to(telling.take, telling.wait)
            if not telling.over:
                raise EngineUnavailable(f"{WHO} ended its answer without a word")
        except EngineUnavailable:
            wanted = False
            self._check_running(rid)
            raise
        finally:
            self._running.discard(rid)
            if wanted and not reader.over:
                self._abort_soon(rid)

    async def health(self) -> Health:
        """Whether the server answers, and what it said about itself."""
        if self._health_path is None:
            return Health(False, "not started")
        call = ClientRequest("GET", self._health_path, timeouts=HEALTH_PATIENCE)
        try:
            status, _ = await fetch(self._endpoint, call)
        except DovetailError as error:
            return Health(False, error.message)
        facts = {"version": self._facts.version, "priority": self._facts.priority or "off"}
        return Health(status == 200, "" if status == 200 else f"status {status}", facts)

    async def stop(self) -> None:
        """Gives up what runs there for us."""
        self._health_path = None
        running, self._running = self._running, set()
        self._lines.abort_all()  # a server that hangs never says the word that would end them
        for rid in running:
            self._abort_soon(rid)
        await asyncio.gather(*self._aborts)

    def _abort_soon(self, rid: str) -> None:
        """SGLang looks for clients that hung up only seconds later, so it is told as well."""
        if self._takes_aborts:
            task = asyncio.get_running_loop().create_task(self._abort(rid))
            self._aborts.add(task)
            task.add_done_callback(self._aborts.discard)

    async def _abort(self, rid: str) -> None:
        asked = msgspec.json.encode({"rid": rid})
        call = ClientRequest("POST", "/abort_request", asked, timeouts=ABORT_PATIENCE)
        try:
            status, _ = await fetch(self._endpoint, call)
        except DovetailError as error:
            _logger.info("the request %s was not aborted: %s", rid, error.message)
            return
        if status in (401, 403, 404, 405):
            self._takes_aborts = False
            _logger.info("%s takes no aborts (%d): it will notice who hangs up", WHO, status)

    def _check_running(self, rid: str) -> None:
        if self._health_path is None or rid not in self._running:
            raise EngineUnavailable("the engine 'sglang' is not running")

    def _abilities(self) -> Abilities:
        lengths = [self._context_length, self._facts.window]
        return Abilities(
            constraints=self._facts.constraints,
            logprobs=True,
            cached_tokens=self._facts.told,
            context_length=min((length for length in lengths if length), default=None),
        )
