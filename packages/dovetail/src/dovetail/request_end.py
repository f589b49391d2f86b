"""What is known of a request when it is over: the one record that metrics and logs are made of."""

import msgspec

from dovetail_model import Usage


class RequestEnd(msgspec.Struct, frozen=True, kw_only=True):
    """A finished request. Nothing in it is text of a prompt or an answer.

    `model` is the served model's own name, empty where none was found. `status` is the HTTP
    status; where a stream broke after its beginning, the one that the error would have been,
    and 499 where the client hung up. Times are in seconds. `prefix` is the doctor's line.
    """

    id: str
    endpoint: str
    status: int
    duration: float
    model: str = ""
    asked: str = ""
    stream: bool = False
    tenant: str = ""
    session: str | None = None
    agent: str | None = None
    usage: Usage | None = None
    first_token: float | None = None
    finish: str | None = None
    error: str | None = None
    disconnected: bool = False
    prefix: str | None = None
