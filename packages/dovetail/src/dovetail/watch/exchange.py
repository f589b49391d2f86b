"""A request and its answer as they went over the wire."""

import re
from collections.abc import Iterable
from typing import Literal

import msgspec

from dovetail_protocols import CHAT, MESSAGES, RESPONSES, Codec

#: Names of headers and of fields in an address whose values are never kept: whoever reads a
#: recording must not be able to ask in somebody's name. Better one too many than one too few.
_SECRET_NAME = re.compile(
    r"auth|key|token|secret|cookie|passw|credential|signature|jwt|^(sig|code)$", re.IGNORECASE
)
ResponderName = Literal["upstream", "dovetail"]


class CapturedExchange(msgspec.Struct, frozen=True):
    """A finished exchange. Bodies are without transfer and content encodings.

    Times are seconds: `began` since the epoch, the others since then. `asked` is when the request
    was complete. `marks` say how much of the answer had come when: pairs of a time and a number of
    bytes. `cut` says that the connection ended before the answer did.
    """

    number: int
    method: str
    target: str
    began: float
    asked: float
    ended: float
    status: int
    request_headers: dict[str, str]
    answer_headers: dict[str, str]
    request: bytes
    answer: bytes
    marks: tuple[tuple[float, int], ...] = ()
    cut: bool = False
    server: ResponderName = "upstream"

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def codec(self) -> Codec | None:
        """The API that was spoken, if it is one of the three."""
        return find_codec(self.method, self.target)

    @property
    def has_failed(self) -> bool:
        """Whether nothing was generated: no prompt was computed then, as far as one can tell."""
        return self.status >= 400 or not self.status

    @property
    def is_streamed(self) -> bool:
        return self.answer_headers.get("content-type", "").startswith("text/event-stream")


def find_codec(method: str, target: str) -> Codec | None:
    """The codec of a request that a model answers; None for all others."""
    path = target.partition("?")[0].rstrip("/")
    if method != "POST":
        return None
    return next((codec for end, codec in _CODECS_BY_PATH.items() if path.endswith(end)), None)


def redact_headers(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers by their names in lower case, without those that hold a secret."""
    named = ((name.decode("latin-1").lower(), value) for name, value in headers)
    return {name: value.decode("latin-1") for name, value in named if not _SECRET_NAME.search(name)}


def redact_target(target: str) -> str:
    """A path and its query, without the values that are secret."""
    path, mark, query = target.partition("?")
    fields = (field.partition("=") for field in query.split("&"))
    kept = (
        name + ("=…" if _SECRET_NAME.search(name) else eq + value) for name, eq, value in fields
    )
    return path + mark + "&".join(kept)


_CODECS_BY_PATH: dict[str, Codec] = {
    "/v1/messages": MESSAGES,
    "/v1/chat/completions": CHAT,
    "/v1/responses": RESPONSES,
}
