"""Responses as Open Responses requires them: no field is missing, and none has another type."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from golden_transcripts import CountingIds, Transcript, clock, transcripts
from open_responses import DISPATCH_EVENTS, event_errors, find_schema, response_errors

from dovetail_model import Message as FoldedMessage
from dovetail_model import Sampling, TextBlock
from dovetail_protocols import RESPONSES, with_effective_sampling

Json = dict[str, Any]

TRANSCRIPTS = [one for one in transcripts() if one.api == "responses"]
EACH = pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda one: one.folder.name)
NEEDS_SCHEMA = pytest.mark.skipif(
    find_schema() is None,
    reason="the schema of Open Responses is not on this machine; set DOVETAIL_OPEN_RESPONSES",
)
NUMBERS = ("temperature", "top_p", "presence_penalty", "frequency_penalty")


def events(transcript: Transcript) -> Iterator[Json]:
    for frame in transcript.stream().split(b"\n\n"):
        name, _, data = frame.partition(b"\ndata: ")
        if data and name.removeprefix(b"event: ").decode() not in DISPATCH_EVENTS:
            yield msgspec.json.decode(data)


def objects(transcript: Transcript) -> list[Json]:
    """Return every response object of a transcript."""
    found = [event["response"] for event in events(transcript) if "response" in event]
    if transcript.failure() is None:
        found.append(msgspec.json.decode(transcript.whole()))
    return found


def respond(body: Json, sampling: Sampling | None = None) -> Json:
    request = RESPONSES.decode(msgspec.json.encode({"model": "m", "input": "x"} | body), {})
    if sampling is not None:
        request = with_effective_sampling(request, sampling)
    message = FoldedMessage((TextBlock("y"),), "stop")
    whole = RESPONSES.encode_message(request, [message], CountingIds(), clock)
    return dict(msgspec.json.decode(whole))


@NEEDS_SCHEMA
@EACH
def test_response_objects_match_the_schema(transcript: Transcript) -> None:
    assert [error for one in objects(transcript) for error in response_errors(one)] == []


@NEEDS_SCHEMA
@EACH
def test_events_match_the_schema(transcript: Transcript) -> None:
    assert [error for event in events(transcript) for error in event_errors(event)] == []


@EACH
def test_response_objects_have_numbers_and_complete_tools(transcript: Transcript) -> None:
    for response in objects(transcript):
        assert all(isinstance(response[name], float | int) for name in NUMBERS)
        assert response["service_tier"] == "default"
        functions = [tool for tool in response["tools"] if tool["type"] == "function"]
        assert all(isinstance(tool["strict"], bool) for tool in functions)
        assert all({"name", "description", "parameters"} <= tool.keys() for tool in functions)


@EACH
def test_reasoning_items_have_no_empty_seal(transcript: Transcript) -> None:
    items = [event["item"] for event in events(transcript) if "item" in event]
    items += [item for response in objects(transcript) for item in response["output"]]
    assert all(item.get("encrypted_content", "") is not None for item in items)


def test_parameters_are_the_effective_ones() -> None:
    assert [respond({})[name] for name in NUMBERS] == [1.0, 1.0, 0.0, 0.0]
    assert [respond({"temperature": 0.3, "frequency_penalty": 0.5})[name] for name in NUMBERS] == [
        0.3, 1.0, 0.0, 0.5,
    ]  # fmt: skip
    defaults = Sampling(temperature=0.6, top_p=0.95)
    assert [respond({}, defaults)[name] for name in NUMBERS] == [0.6, 0.95, 0.0, 0.0]


def test_tools_are_complete_in_every_form() -> None:
    bare = {"type": "function", "name": "f"}
    nested = {"type": "function", "function": {"name": "g", "parameters": {"type": "object"}}}
    search = {"type": "web_search"}
    tools = respond({"tools": [bare, nested, search]})["tools"]
    assert tools[0] == bare | {"description": None, "parameters": None, "strict": False}
    assert tools[1]["name"] == "g"
    assert tools[1]["strict"] is False
    assert tools[2] == search


def test_format_is_complete() -> None:
    format = {"type": "json_schema", "name": "a", "schema": {"type": "object"}}
    found = respond({"text": {"format": format}})["text"]["format"]
    assert found == format | {"description": None, "strict": False}
