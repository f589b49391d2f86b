"""The registries of fields: complete, consistent, and applied by the decoders."""

from typing import Any

import msgspec
import pytest

from dovetail_model import Unsupported
from dovetail_protocols import CHAT, COMPLETIONS, FIELD_REGISTRIES, MESSAGES, RESPONSES, Codec
from dovetail_protocols.chat.wire import ChatRequest
from dovetail_protocols.completions.wire import CompletionRequest
from dovetail_protocols.engine_fields import EngineFields
from dovetail_protocols.fields import BINDING_KINDS, Field, FieldRegistry
from dovetail_protocols.messages import wire as messages_wire
from dovetail_protocols.responses import wire as responses_wire

CODECS: dict[str, Codec] = {
    "chat": CHAT,
    "completions": COMPLETIONS,
    "messages": MESSAGES,
    "responses": RESPONSES,
}
BODIES: dict[str, dict[str, Any]] = {
    "chat": {"model": "m", "messages": [{"role": "user", "content": "Hi"}]},
    "completions": {"model": "m", "prompt": "Hi"},
    "messages": {"model": "m", "messages": [{"role": "user", "content": "Hi"}]},
    "responses": {"model": "m", "input": "Hi"},
}
WIRES: dict[str, type[msgspec.Struct]] = {
    "chat": ChatRequest,
    "completions": CompletionRequest,
    "messages": messages_wire.Request,
    "responses": responses_wire.Body,
}
TOOLS: dict[str, type[msgspec.Struct]] = {
    "messages": messages_wire.Tool,
    "responses": responses_wire.ToolIn,
}
#: Fields without which an object is invalid.
REQUIRED: dict[str, dict[str, Any]] = {"thinking": {"type": "adaptive"}}
ROWS = [
    pytest.param(registry.api, field, id=f"{registry.api}:{field.name}")
    for registry in FIELD_REGISTRIES
    for field in registry.fields
]


def nest(path: str, value: Any) -> dict[str, Any]:
    """Return the value as a body with one field at this path."""
    name, _, rest = path.partition(".")
    return {name: REQUIRED.get(name, {}) | nest(rest, value) if rest else value}


def ignored(api: str, **fields: Any) -> tuple[str, ...]:
    body = msgspec.json.encode(BODIES[api] | fields)
    request = CODECS[api].decode(body, {})
    request.client.reject_unsupported()
    return request.ignored


@pytest.mark.parametrize("registry", FIELD_REGISTRIES, ids=lambda registry: str(registry.api))
def test_all_fields_that_decoders_read_are_declared(registry: FieldRegistry) -> None:
    declared = {field.name for field in registry.fields}
    read = {*WIRES[registry.api].__struct_fields__, *EngineFields.__struct_fields__}
    if registry.api in TOOLS:
        read |= {f"tools[].{name}" for name in TOOLS[registry.api].__struct_fields__}
    assert read <= declared


@pytest.mark.parametrize("registry", FIELD_REGISTRIES, ids=lambda registry: str(registry.api))
def test_a_field_that_changes_the_output_is_never_only_reported(registry: FieldRegistry) -> None:
    assert not [
        field.name
        for field in registry.fields
        if field.kind in BINDING_KINDS and field.support == "reported"
    ]


@pytest.mark.parametrize(("api", "field"), ROWS)
def test_an_unsupported_field_is_rejected_or_reported(api: str, field: Field) -> None:
    if field.support not in ("rejected", "reported") or "[]" in field.name:
        return
    body = nest(field.name, field.example)
    if field.support == "reported":
        assert field.name in ignored(api, **body)
    else:
        with pytest.raises(Unsupported) as caught:
            ignored(api, **body)
        assert caught.value.param == field.name
        assert field.remedy in caught.value.message
    for value in (None, *field.neutral):
        assert ignored(api, **nest(field.name, value)) == ()


@pytest.mark.parametrize("api", CODECS)
def test_undeclared_fields_are_reported(api: str) -> None:
    assert ignored(api, of_tomorrow=1, nvext={"mood": 1, "agent_hints": {"mood": 1}}) == (
        "of_tomorrow",
        "nvext.mood",
        "nvext.agent_hints.mood",
    )


def test_undeclared_fields_of_tools_are_reported_once() -> None:
    function = {"name": "f", "parameters": {}, "mood": 1}
    tools: list[Any] = [{"type": "function", "function": function | {"name": n}} for n in "ab"]
    assert ignored("chat", tools=tools) == ("tools[].function.mood",)
    assert ignored("responses", tools=[{"type": "function"} | function]) == ("tools[].mood",)
    tool = {"name": "f", "input_schema": {}, "mood": 1}
    assert ignored("messages", tools=[tool, tool]) == ("tools[].mood",)


def test_unknown_values_of_include_are_reported() -> None:
    include = ["reasoning.encrypted_content", "computer_call_output.output.image_url"]
    assert ignored("responses", include=include) == ("include[1]",)


def test_a_field_is_declared_once() -> None:
    with pytest.raises(ValueError, match="`a` twice"):
        FieldRegistry("x", (Field("a", "hint", 1), Field("a", "hint", 1)))
