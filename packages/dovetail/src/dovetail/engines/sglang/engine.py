"""An SGLang server as a token engine, over its native `/generate`."""

import logging
from contextlib import nullcontext
from secrets import token_hex

from dovetail.engines.engine import (
    EngineCapabilities,
    EngineHealth,
    EngineRequest,
    TokenSink,
    check_prompt_length,
)
from dovetail.engines.redaction import Redactor
from dovetail.engines.sampling import OPTIONAL_SAMPLING
from dovetail.engines.served_model import ServedModelCheck
from dovetail.engines.sglang.control import ControlClient
from dovetail.engines.sglang.discovery import (
    SERVER_INFO_PATHS,
    SglangOptions,
    SglangServerInfo,
    fetch_json,
    find_health_path,
    find_model_path,
    parse_served_models,
    parse_server_info,
)
from dovetail.engines.sglang.frames import SERVER_NAME, SglangFrameReader, sglang_error_from_status
from dovetail.engines.sglang.request import encode_request
from dovetail.engines.sglang.session_references import SessionReferences
from dovetail.engines.timeouts import HEALTH_TIMEOUTS
from dovetail.engines.token_ids import PromptEncoder
from dovetail.engines.token_stream import TokenStreamReader
from dovetail.net.http_client import (
    ClientRequest,
    ConnectionGroup,
    Endpoint,
    Timeouts,
    fetch,
    send_request,
)
from dovetail_model import DovetailError, EngineUnavailable
from dovetail_tokenizers import Tokenizer

_log = logging.getLogger(__name__)


class SglangEngine:
    """One remote server, which this engine neither starts nor stops."""

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
        self._server_info = SglangServerInfo()
        self._redactor = Redactor(endpoint)
        self._served_model = ServedModelCheck(f"{SERVER_NAME} at {endpoint}")
        self._model_path: str | None = None
        self._health_path: str | None = None
        self._running: set[str] = set()
        self._connections = ConnectionGroup()
        self._prompt_encoder = PromptEncoder()
        self._control = ControlClient(endpoint)
        self._references = SessionReferences(self._control.close_session)
        self.capabilities = self._build_capabilities()

    async def start(self) -> None:
        """Query how the server was started. Raise an error if no server has the model."""
        self._model_path = self._model_path or await find_model_path(self._endpoint)
        if problem := await self._check_model():
            raise EngineUnavailable(problem)
        self._server_info = parse_server_info(
            await fetch_json(self._endpoint, *SERVER_INFO_PATHS), self._options
        )
        self.capabilities = self._build_capabilities()
        self._control.reset()
        self._health_path = await find_health_path(self._endpoint)
        if self._server_info.incremental_output is False:
            advice = "start SGLang with --incremental-streaming-output"
            _log.info(
                "cumulative_output_detected",
                extra={"fields": {"engine": SERVER_NAME, "advice": advice}},
            )

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None:
        """Push deltas as they arrive. Cancelling closes the connection and aborts the request."""
        if self._served_model.problem:
            raise EngineUnavailable(f"{SERVER_NAME} serves another model than at startup")
        is_running = self._health_path is not None
        is_tracked = is_running and self._server_info.has_session_references
        tracking = self._references.track(request) if is_tracked else nullcontext()
        with tracking, self._redactor.clean_errors():
            await self._generate(request, sink)

    def retain(self, request: str, seconds: float) -> None:
        """Let SGLang evict the session of a finished request last for some time."""
        self._references.retain(request, seconds)

    async def health(self) -> EngineHealth:
        """Return whether the server responds and has the model, and the facts that it reported."""
        if self._health_path is None:
            return EngineHealth(False, "not started")
        client_request = ClientRequest("GET", self._health_path, timeouts=HEALTH_TIMEOUTS)
        try:
            problem = await self._check_model()
            status, _ = await fetch(self._endpoint, client_request)
        except DovetailError as error:
            return EngineHealth(False, error.message)
        if status != 200:
            problem = f"status {status}"
        facts = {
            "version": self._server_info.version,
            "priority": self._server_info.priority_order or "off",
        }
        return EngineHealth(not problem, problem, facts)

    async def stop(self) -> None:
        """Abort this engine's requests and close its sessions on the server."""
        self._health_path = None
        running, self._running = self._running, set()
        self._connections.abort_all()  # a server that hangs would never end them
        for rid in running:
            self._control.abort(rid)
        await self._references.stop()
        await self._control.wait()

    async def _generate(self, request: EngineRequest, sink: TokenSink) -> None:
        check_prompt_length(request, self.capabilities.context_length)
        # SGLang aborts every request whose id begins with the given id, so no id may be a prefix.
        rid = f"{token_hex(8)}-{request.id}"
        reader = SglangFrameReader(request, self._tokenizer)
        stream = TokenStreamReader(reader.read, sink)
        timeouts = Timeouts(read=self._options.silence)
        body = encode_request(request, self._prompt_encoder, rid, self._server_info.priority_order)
        client_request = ClientRequest("POST", "/generate", body, timeouts=timeouts)
        abort_on_exit = True
        self._running.add(rid)
        try:
            self._check_running(rid)
            async with send_request(self._endpoint, client_request, self._connections) as response:
                self._check_running(rid)
                if response.status != 200:
                    abort_on_exit = False
                    content = self._redactor.clean_bytes(await response.read())
                    raise sglang_error_from_status(response.status, content)
                await response.stream_to(stream.push, stream.drain)
            if not stream.finished:
                raise EngineUnavailable(
                    f"{SERVER_NAME} closed the stream before the output was complete"
                )
        except EngineUnavailable:
            abort_on_exit = False
            self._check_running(rid)
            raise
        finally:
            self._running.discard(rid)
            if abort_on_exit and not reader.is_finished:
                self._control.abort(rid)

    async def _check_model(self) -> str:
        if self._model_path is None:
            return ""
        info = await fetch_json(self._endpoint, self._model_path)
        return self._served_model.check(parse_served_models(info or {}))

    def _check_running(self, rid: str) -> None:
        if self._health_path is None or rid not in self._running:
            raise EngineUnavailable("the engine 'sglang' is not running")

    def _build_capabilities(self) -> EngineCapabilities:
        lengths = [self._context_length, self._server_info.context_length]
        return EngineCapabilities(
            constraints=self._server_info.constraints,
            sampling=frozenset(OPTIONAL_SAMPLING),
            logprobs=True,
            cached_tokens=self._server_info.reported,
            context_length=min((length for length in lengths if length), default=None),
            kv_tokens=self._server_info.kv_tokens,
        )
