"""Annotations of an upstream server reach the client, and the server gets them back."""

import json
from typing import Any

import pytest
from http_fixture import NAME, run
from recording_upstream import relaying
from upstream_environment import FakeRequest, FakeResponse, chunks

PAGE = {
    "type": "url_citation",
    "url": "https://example.com/joint",
    "title": "Joint",
    "start_index": 0,
    "end_index": 3,
    "rank": 1,
}
FILE = {"type": "file_citation", "file_id": "file-7", "filename": "joint.txt", "index": 0}
IN_CONTAINER = {
    "type": "container_file_citation",
    "container_id": "cntr_1",
    "file_id": "cfile_1",
    "filename": "plot.png",
    "start_index": 1,
    "end_index": 2,
}
TEXT = {"type": "output_text", "text": "See it.", "annotations": [PAGE, FILE]}
MORE = {"type": "output_text", "text": " And.", "annotations": [IN_CONTAINER]}
#: The parts are joined, so the place moves by the length of the first.
MOVED = IN_CONTAINER | {"start_index": 8, "end_index": 9}
MESSAGE = {
    "type": "message",
    "id": "msg_1",
    "status": "completed",
    "role": "assistant",
    "content": [TEXT, MORE],
}
RESPONSE: dict[str, Any] = {
    "id": "resp_7",
    "object": "response",
    "created_at": 1,
    "status": "completed",
    "output": [MESSAGE],
    "usage": {"input_tokens": 7, "output_tokens": 2},
}
AT = {"output_index": 0, "item_id": "msg_1"}


def delta(part: int) -> dict[str, Any]:
    text: Any = (TEXT, MORE)[part]["text"]
    return {"type": "response.output_text.delta", **AT, "content_index": part, "delta": text}


def added(annotation: dict[str, Any], part: int) -> dict[str, Any]:
    kind = "response.output_text.annotation.added"
    return {"type": kind, **AT, "content_index": part, "annotation": annotation}


ITEM_ADDED = {
    "type": "response.output_item.added",
    "output_index": 0,
    "item": MESSAGE | {"content": []},
}
ITEM_DONE = {"type": "response.output_item.done", "output_index": 0, "item": MESSAGE}
COMPLETED = {"type": "response.completed", "response": RESPONSE}
STREAMS = {
    "each with its frame": [
        ITEM_ADDED, delta(0), added(PAGE, 0), added(FILE, 0), delta(1), added(IN_CONTAINER, 1),
        ITEM_DONE, COMPLETED,
    ],
    "only in the item": [ITEM_ADDED, delta(0), delta(1), ITEM_DONE, COMPLETED],
    "only in the response": [delta(0), delta(1), COMPLETED],
    "without deltas": [COMPLETED],
    "some with a frame": [delta(0), added(PAGE, 0), delta(1), COMPLETED],
}  # fmt: skip


def reply_with(frames: list[dict[str, Any]]) -> Any:
    def respond(request: FakeRequest) -> FakeResponse:
        if request.path != "/v1/responses":
            return FakeResponse(404)
        if not frames:
            return FakeResponse(body=json.dumps(RESPONSE).encode())
        body = "".join(f"data: {json.dumps(frame)}\n\n" for frame in frames).encode()
        return FakeResponse(body=body, kind="text/event-stream")

    return respond


@pytest.mark.parametrize("frames", [*STREAMS.values(), []], ids=[*STREAMS, "not streamed"])
def test_every_annotation_reaches_a_responses_client(frames: list[dict[str, Any]]) -> None:
    async def scene() -> None:
        async with relaying("responses") as (stage, fake):
            fake.respond = reply_with(frames)
            body = {"model": NAME, "input": "Hi."}
            reply = await stage.request("POST", "/v1/responses", body)
            (part,) = reply.json["output"][-1]["content"]
            assert part["text"] == "See it. And."
            found = sorted(part["annotations"], key=str)
            assert found == sorted([PAGE, FILE, MOVED], key=str)
            reply = await stage.request("POST", "/v1/responses", body | {"stream": True})
            events = [
                json.loads(line.removeprefix("data: "))
                for line in reply.body.decode().splitlines()
                if line.startswith("data: ")
            ]
            (streamed,) = events[-1]["response"]["output"][-1]["content"]
            assert streamed["annotations"] == part["annotations"]
            kinds = [event["type"] for event in events]
            assert kinds.count("response.output_text.annotation.added") == 3

    run(scene)


def test_annotations_of_the_history_are_sent_to_a_responses_upstream() -> None:
    async def scene() -> None:
        async with relaying("responses") as (stage, fake):
            plain = {"type": "output_text", "text": "Plain.", "annotations": []}
            history = [MESSAGE, MESSAGE | {"content": [plain]}, {"role": "user", "content": "And?"}]
            await stage.request("POST", "/v1/responses", {"model": NAME, "input": history})
            sent = fake.bodies("/v1/responses")[-1]["input"]
            assert [item["content"] for item in sent] == [[TEXT], [MORE], "Plain.", "And?"]

    run(scene)


def test_reference_to_a_file_is_reported_to_clients_of_other_apis() -> None:
    async def scene() -> None:
        async with relaying("responses") as (stage, fake):
            fake.respond = reply_with([])
            messages = [{"role": "user", "content": "Hi."}]
            body = {"model": NAME, "messages": messages}
            reply = await stage.request("POST", "/v1/chat/completions", body)
            (annotation,) = reply.json["choices"][0]["message"]["annotations"]
            assert annotation["url_citation"]["url"] == PAGE["url"]
            assert "annotation_not_carried" in reply.headers["x-dovetail-diagnostics"]
            reply = await stage.request("POST", "/v1/messages", body | {"max_tokens": 9})
            (citation,) = reply.json["content"][0]["citations"]
            assert citation["url"] == PAGE["url"]

    run(scene)


CHAT_PAGE = {
    "type": "url_citation",
    "url_citation": {
        "url": "https://example.com/joint",
        "title": "Joint",
        "start_index": 0,
        "end_index": 3,
    },
}


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("declared", [True, False])
def test_annotations_of_a_chat_upstream_reach_the_client(streamed: bool, declared: bool) -> None:
    def respond(request: FakeRequest) -> FakeResponse:
        if request.path != "/v1/chat/completions":
            return FakeResponse(404)
        message = {"role": "assistant", "content": "See it.", "annotations": [CHAT_PAGE]}
        if not streamed:
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            return FakeResponse(body=json.dumps({"choices": [choice]}).encode())
        body = chunks({"content": "See "}, {"content": "it."}, {"annotations": [CHAT_PAGE]})
        return FakeResponse(body=body, kind="text/event-stream")

    async def scene() -> None:
        async with relaying("chat") as (stage, fake):
            fake.respond = respond
            body: dict[str, Any] = {"model": NAME, "messages": [{"role": "user", "content": "Hi."}]}
            body |= {"web_search_options": {}} if declared else {}
            reply = await stage.request("POST", "/v1/chat/completions", body)
            message = reply.json["choices"][0]["message"]
            assert (message["content"], message["annotations"]) == ("See it.", [CHAT_PAGE])
            reply = await stage.request("POST", "/v1/chat/completions", body | {"stream": True})
            deltas = [
                json.loads(line.removeprefix("data: "))["choices"][0]["delta"]
                for line in reply.body.decode().splitlines()
                if line.startswith("data: {")
            ]
            found = [delta["annotations"] for delta in deltas if "annotations" in delta]
            assert found == [[CHAT_PAGE]]

    run(scene)
