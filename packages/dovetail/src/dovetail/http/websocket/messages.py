"""What a client sends over a socket: one kind of message, which asks for a response."""

from collections.abc import Mapping
from typing import Any

import msgspec

from dovetail_model import InvalidRequest, Unsupported

_Fields = dict[str, msgspec.Raw]
_fields = msgspec.json.Decoder(_Fields)
_ON = b"true"
_LONGEST_LANE = 128


class Asked(msgspec.Struct, frozen=True):
    """A message. `body` is what the same request would be over HTTP, as a stream.

    `warms`: nothing is to be generated, the next message goes on from this one. `lane` keeps its
    messages in order, apart from those of other lanes. `told` are the headers of this very
    request: those of the connection are as old as the connection. `fault` is what is wrong with it.
    """

    body: bytes = b""
    lane: str | None = None
    warms: bool = False
    told: Mapping[str, str] = {}
    fault: Exception | None = None

    @property
    def size(self) -> int:
        return len(self.body)


def read_message(data: str | bytes) -> Asked:
    """A message as it came. Never raises: a fault is told where the answer would be."""
    try:
        return _read(data)
    except (InvalidRequest, Unsupported) as fault:
        return Asked(fault=fault)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        return Asked(fault=InvalidRequest(f"The message is no JSON object: {error}"))


def _read(data: str | bytes) -> Asked:
    fields = _fields.decode(data)
    lane = _lane(fields.pop("stream_id", None))
    try:
        return _asks(fields, lane)
    except (InvalidRequest, Unsupported) as fault:
        return Asked(lane=lane, fault=fault)


def _asks(fields: _Fields, lane: str | None) -> Asked:
    kind = _value(fields.pop("type", None))
    if kind != "response.create":
        raise InvalidRequest(
            "type: Expected response.create, the only message that is known here", param="type"
        )
    if _value(fields.get("background")) is True:
        raise Unsupported("background: Not offered over WebSockets", param="background")
    generates = _value(fields.pop("generate", None))
    if generates not in (None, True, False):
        raise InvalidRequest("generate: Expected a boolean", param="generate")
    warms = generates is False or _prewarms(_value(fields.get("prompt_cache_options")))
    fields["stream"] = msgspec.Raw(_ON)  # there is no other way over a socket
    return Asked(msgspec.json.encode(fields), lane, warms, _told(fields.get("client_metadata")))


def _lane(raw: msgspec.Raw | None) -> str | None:
    lane = _value(raw)
    if lane is None:
        return None
    if not isinstance(lane, str) or not 0 < len(lane) <= _LONGEST_LANE:
        raise InvalidRequest(
            f"stream_id: Expected a text of 1 to {_LONGEST_LANE} characters", param="stream_id"
        )
    return lane


def _prewarms(options: Any) -> bool:
    return isinstance(options, dict) and options.get("prewarm") is True


def _told(raw: msgspec.Raw | None) -> dict[str, str]:
    """Headers that Codex puts into the message, since it has no others for it."""
    metadata = _value(raw)
    if not isinstance(metadata, dict):
        return {}
    return {
        name.lower().removeprefix("ws_request_header_"): value
        for name, value in metadata.items()
        if isinstance(value, str)
    }


def _value(raw: msgspec.Raw | None) -> Any:
    return None if raw is None else msgspec.json.decode(raw)
