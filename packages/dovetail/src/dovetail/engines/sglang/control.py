"""Requests to an SGLang server in addition to the generations: aborts and ends of sessions."""

import asyncio
import logging
from collections.abc import Coroutine

import msgspec

from dovetail.engines.sglang.frames import SERVER_NAME
from dovetail.net.http_client import ClientRequest, Endpoint, Timeouts, fetch
from dovetail_model import DovetailError

CONTROL_TIMEOUTS = Timeouts(connect=2.0, read=5.0)
REFUSALS = (401, 403, 404, 405)
MAX_LOGGED_CHARS = 200

_log = logging.getLogger(__name__)


class ControlClient:
    """Sends control requests. Failures are only logged, and nothing waits for an abort."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._supports_abort = True
        self._tasks: set[asyncio.Task[None]] = set()

    def reset(self) -> None:
        """Send aborts again: the server was restarted."""
        self._supports_abort = True

    def abort(self, rid: str) -> None:
        """Abort a request explicitly: SGLang detects disconnected clients only after seconds."""
        if self._supports_abort:
            self._schedule(self._abort(rid))

    async def close_session(self, session: str) -> bool:
        """Close a session. Return whether the server responded."""
        status, problem = await self._post("/close_session", {"session_id": session})
        if status != 200:
            _log_failure("session_close_failed", session=session[:MAX_LOGGED_CHARS], error=problem)
        return status is not None

    async def wait(self) -> None:
        """Wait until all aborts were sent."""
        await asyncio.gather(*self._tasks)

    def _schedule(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _abort(self, rid: str) -> None:
        status, problem = await self._post("/abort_request", {"rid": rid})
        if status in REFUSALS:
            self._supports_abort = False
            _log_failure("abort_unsupported", status=status)
        elif status is None:
            _log_failure("abort_failed", request=rid, error=problem)

    async def _post(self, path: str, fields: dict[str, str]) -> tuple[int | None, str]:
        """Return the status, or None without a response, and what is wrong with it."""
        body = msgspec.json.encode(fields)
        client_request = ClientRequest("POST", path, body, timeouts=CONTROL_TIMEOUTS)
        try:
            status, _ = await fetch(self._endpoint, client_request)
        except DovetailError as error:
            return None, error.message
        return status, f"status {status}"


def _log_failure(event: str, **fields: object) -> None:
    _log.info(event, extra={"fields": {"engine": SERVER_NAME, **fields}})
