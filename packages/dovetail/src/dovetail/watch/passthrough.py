"""A request handed to the server as it came, for those that `--fix` does not answer itself.

Status, headers and body are the server's own; how they are framed is up to our two connections.
"""

from collections.abc import Mapping
from contextlib import aclosing

from dovetail.net.exchange import Message, Scope, Send
from dovetail.net.http_client import ClientRequest, Endpoint, Timeouts, send_request
from dovetail_model import EngineError

PASSTHROUGH_TIMEOUTS = Timeouts(read=3600.0)
#: Headers that are about one connection, not about the message.
_HOP_BY_HOP_HEADERS = frozenset(
    {
        "connection",
        "content-length",
        "host",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_CREDENTIAL_HEADERS = {
    "authorization",
    "x-api-key",
}  # of the client, where the server's own key is known


async def forward_request(endpoint: Endpoint, scope: Scope, body: bytes, answer: Send) -> None:
    """Asks the server, and answers what it answers."""
    query = scope.get("query_string", b"").decode("latin-1")
    path = scope["raw_path"].decode("latin-1") if scope.get("raw_path") else scope["path"]
    kept_back = _HOP_BY_HOP_HEADERS | (
        _CREDENTIAL_HEADERS if "authorization" in endpoint.headers else set()
    )
    headers = {
        name: value.decode("latin-1")
        for raw, value in scope["headers"]
        if (name := raw.decode("latin-1").lower()) not in kept_back
    }
    target = f"{path}?{query}" if query else path
    call = ClientRequest(scope["method"], target, body, headers, PASSTHROUGH_TIMEOUTS)
    begun = False
    try:
        async with send_request(endpoint, call) as reply:
            begun = True
            await answer(_response_start(reply.status, reply.headers))
            if scope["method"] != "HEAD":
                async with aclosing(reply.iter_chunks()) as chunks:
                    async for chunk in chunks:
                        await answer(_response_body(chunk, more=True))
            await answer(_response_body(b"", more=False))
    except EngineError as error:
        if begun:
            return  # there is no second answer: the connection breaks, as the server's did
        await send_error(502, error.message, answer)


async def send_error(status: int, message: str, answer: Send) -> None:
    """An answer of our own, in place of the server's."""
    await answer(_response_start(status, {"content-type": "text/plain"}))
    await answer(_response_body(f"dovetail watch: {message}\n".encode(), more=False))


def _response_start(status: int, headers: Mapping[str, str]) -> Message:
    lines = [
        (name.encode("latin-1"), value.encode("latin-1"))
        for name, value in headers.items()
        if name.lower() not in _HOP_BY_HOP_HEADERS - {"content-length"}
    ]
    return {"type": "http.response.start", "status": status, "headers": lines}


def _response_body(body: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}
