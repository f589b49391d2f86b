"""Errors in the API's own form, before and within a stream; and the page that describes it."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from golden_transcripts import CountingIds, clock

import dovetail_model
from dovetail_model import DovetailError, Failure
from dovetail_protocols import SseReader
from dovetail_protocols.responses import CODEC
from dovetail_protocols.responses.input_items import ITEM_DECODERS
from dovetail_protocols.responses.wire import Body

ERRORS: list[tuple[type[DovetailError], int, str, str | None, str]] = [
    (dovetail_model.InvalidRequest, 400, "invalid_request_error", None, "invalid_prompt"),
    (dovetail_model.Unsupported, 400, "invalid_request_error", "unsupported_parameter",
     "invalid_prompt"),
    (dovetail_model.ContextOverflow, 400, "invalid_request_error", "context_length_exceeded",
     "context_length_exceeded"),
    (dovetail_model.Unauthenticated, 401, "invalid_request_error", "invalid_api_key",
     "invalid_prompt"),
    (dovetail_model.Forbidden, 403, "invalid_request_error", "permission_denied",
     "invalid_prompt"),
    (dovetail_model.NotFound, 404, "invalid_request_error", "model_not_found", "invalid_prompt"),
    (dovetail_model.RequestTooLarge, 413, "invalid_request_error", "request_too_large",
     "invalid_prompt"),
    (dovetail_model.RateLimited, 429, "rate_limit_error", "rate_limit_exceeded",
     "rate_limit_exceeded"),
    (dovetail_model.EngineError, 500, "server_error", "engine_error", "server_error"),
    (dovetail_model.EngineUnavailable, 503, "server_error", "service_unavailable", "server_error"),
    (dovetail_model.Overloaded, 503, "server_error", "server_is_overloaded", "server_error"),
    (dovetail_model.EngineTimeout, 504, "server_error", "timeout", "server_error"),
    (dovetail_model.InternalError, 500, "server_error", "internal_error", "server_error"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "status", "type_", "code", "in_stream"),
    ERRORS,
    ids=[row[0].__name__ for row in ERRORS],
)
def test_error(
    kind: type[DovetailError], status: int, type_: str, code: str | None, in_stream: str
) -> None:
    error = kind("No.", param="input[3]")
    response = CODEC.encode_error(error)
    assert response.status == status
    assert response.headers == ()
    assert msgspec.json.decode(response.body) == {
        "error": {"message": "No.", "type": type_, "param": "input[3]", "code": code}
    }
    assert failed(error.to_failure()) == {"code": in_stream, "message": "No."}


def failed(failure: Failure) -> dict[str, Any]:
    request = CODEC.decode(b'{"model": "m", "input": "x"}', {})
    frames = SseReader().feed(CODEC.stream(request, CountingIds(), clock).encode([failure]))
    assert frames[-1].event == "response.failed"
    error: dict[str, Any] = msgspec.json.decode(frames[-1].data)["response"]["error"]
    return error


@pytest.mark.parametrize("kind", [dovetail_model.RateLimited, dovetail_model.Overloaded])
def test_retry_after_is_sent(kind: type[DovetailError]) -> None:
    assert CODEC.encode_error(kind("Later.", retry_after=2.2)).headers == (("retry-after", "3"),)


def test_unknown_kind_is_an_internal_error() -> None:
    class Odd(DovetailError):
        kind = "odd"

    assert CODEC.encode_error(Odd("?")).status == 500
    assert failed(Odd("?").to_failure())["code"] == "server_error"


PAGE = Path(__file__).resolve().parents[3] / "docs" / "apis" / "responses.md"


def test_page_names_every_field_and_every_item() -> None:
    paths = set(re.findall(r"`([a-z_.]+)`", PAGE.read_text(encoding="utf-8")))
    named = {path.partition(".")[0] for path in paths}
    assert set(Body.__struct_fields__) - named == set()
    assert set(ITEM_DECODERS) - named == set()
