"""The JSON schema of Open Responses, and our events in the form that it can validate.

The schema is not part of the repository. `DOVETAIL_OPEN_RESPONSES` names its folder.
"""

import os
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from jsonschema import Draft202012Validator

Json = dict[str, Any]

ROOT = Path(__file__).parents[4]
FOLDER = Path(
    os.environ.get("DOVETAIL_OPEN_RESPONSES") or ROOT.parent / "shared/data/open-responses"
)
#: Our names of events, which OpenAI's SDK and Codex read, and those of the schema.
RENAMED_EVENTS = {
    "response.reasoning_text.delta": "response.reasoning.delta",
    "response.reasoning_text.done": "response.reasoning.done",
}
#: Extensions, which the schema does not describe.
EXTENSION_ITEMS = ("custom_tool_call",)
EXTENSION_EVENTS = ("response.custom_tool_call_input.delta", "response.custom_tool_call_input.done")
DISPATCH_EVENTS = ("tool_call_dispatch", "reasoning_dispatch")


def find_schema() -> Path | None:
    """Return the newest schema, if there is one on this machine."""
    return max(FOLDER.glob("openapi-*.json"), default=None)


@cache
def _document() -> Json:
    path = find_schema()
    assert path is not None
    return dict(msgspec.json.decode(path.read_bytes()))


@cache
def _validator(name: str) -> Draft202012Validator:
    schema = {"$ref": f"#/components/schemas/{name}", "components": _document()["components"]}
    return Draft202012Validator(schema)


@cache
def event_schemas() -> dict[str, str]:
    """Return the names of the schemas of events, by the type of the event."""
    schemas = _document()["components"]["schemas"]
    return {
        schema["properties"]["type"]["enum"][0]: name
        for name, schema in schemas.items()
        if name.endswith("StreamingEvent")
    }


def response_errors(response: Json) -> list[str]:
    """Return what is wrong with a response object."""
    return _errors("ResponseResource", without_extensions(response))


def event_errors(event: Json) -> list[str]:
    """Return what is wrong with an event. Extensions are not checked."""
    kind = RENAMED_EVENTS.get(event["type"], event["type"])
    if kind in EXTENSION_EVENTS or event.get("item", {}).get("type") in EXTENSION_ITEMS:
        return []
    if kind not in event_schemas():
        return [f"unknown event {kind}"]
    if "response" in event:
        event = event | {"response": without_extensions(event["response"])}
    return _errors(event_schemas()[kind], event | {"type": kind})


def without_extensions(response: Json) -> Json:
    """Return a response object without tools and items that the schema does not describe."""
    return response | {
        "tools": [tool for tool in response["tools"] if tool["type"] == "function"],
        "output": [item for item in response["output"] if item["type"] not in EXTENSION_ITEMS],
    }


def _errors(schema: str, value: Json) -> list[str]:
    return [
        f"{error.json_path}: {error.message}" for error in _validator(schema).iter_errors(value)
    ]
