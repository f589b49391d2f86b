"""A panic of a native extension becomes the error of the API on every transport."""

from typing import Any

import pytest
from abuse_failures import (
    GENERATION_BODIES,
    PanicException,
    background_response_becomes_failed,
    is_api_error,
    request_fails_with_an_api_error,
    started_stream_ends_with_an_api_error,
    websocket_request_fails_with_an_event,
)
from http_fixture import NAME, run, serving

from dovetail_tokenizers import EncodeError, HfTokenizer


@pytest.fixture
def panicking_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    def panic(self: HfTokenizer, *args: Any, **kwargs: Any) -> Any:
        raise PanicException("retry-limit-in-match over")

    for name in ("encode", "encode_plain", "pack_plain"):
        monkeypatch.setattr(HfTokenizer, name, panic)


@pytest.mark.usefixtures("panicking_tokenizer")
@pytest.mark.parametrize("path", GENERATION_BODIES)
@pytest.mark.parametrize("stream", [False, True])
def test_panic_before_the_response_starts(path: str, stream: bool) -> None:
    async def scene() -> None:
        async with serving() as stage:
            await request_fails_with_an_api_error(stage, path, stream=stream)
            assert (await stage.ended.get())["error"] == "internal"

    run(scene)


@pytest.mark.usefixtures("panicking_tokenizer")
@pytest.mark.parametrize("path", ["/v1/tokenize", "/v1/messages/count_tokens"])
def test_panic_of_token_endpoints(path: str) -> None:
    async def scene() -> None:
        async with serving() as stage:
            body = {"model": NAME, "messages": [{"role": "user", "content": "Hi"}]}
            reply = await stage.request("POST", path, body)
            assert reply.status == 500
            assert is_api_error(reply)

    run(scene)


@pytest.mark.parametrize("path", GENERATION_BODIES)
def test_panic_in_a_started_stream(path: str) -> None:
    async def scene() -> None:
        async with serving() as stage:
            await started_stream_ends_with_an_api_error(stage, path)
            assert (await stage.ended.get())["error"] == "internal"

    run(scene)


@pytest.mark.usefixtures("panicking_tokenizer")
def test_panic_over_a_websocket() -> None:
    async def scene() -> None:
        async with serving() as stage:
            await websocket_request_fails_with_an_event(stage)

    run(scene)


@pytest.mark.usefixtures("panicking_tokenizer")
def test_panic_of_a_background_response() -> None:
    async def scene() -> None:
        async with serving() as stage:
            await background_response_becomes_failed(stage)

    run(scene)


def test_text_that_the_tokenizer_rejects_is_a_client_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry would fail, too, and would cost the same time."""

    def reject(self: HfTokenizer, *args: Any, **kwargs: Any) -> Any:
        raise EncodeError("The tokenizer cannot encode a text of 12000000 characters.")

    for name in ("encode", "encode_plain", "pack_plain"):
        monkeypatch.setattr(HfTokenizer, name, reject)

    async def scene() -> None:
        async with serving() as stage:
            for path, body in GENERATION_BODIES.items():
                reply = await stage.request("POST", path, {"model": NAME, **body})
                assert reply.status == 400
                assert "12000000 characters" in reply.json["error"]["message"]

    run(scene)
