"""No declared field is ignored silently: it has an effect, or an error or a report names it."""

import json
from typing import Any

import msgspec
from field_requests import BODIES, PATHS, TOOLS, body_for, put, shown
from http_fixture import _TEMPLATE, Reply, Stage, run, serving

from dovetail.engines.engine import EngineCapabilities, EngineRequest
from dovetail.engines.sampling import OPTIONAL_SAMPLING
from dovetail_protocols import FIELD_REGISTRIES, Field, FieldRegistry

#: Honoured, but this test cannot see how.
UNSEEN = {
    "model": "the model of the test is the only one",
    "messages": "the same as without",
    "input": "the same as without",
    "prompt": "the same as without",
    "nvext": "only its members have effects",
    "nvext.agent_hints": "only its members have effects",
    "nvext.agent_hints.strict_priority": "orders the queue of a busy server",
    "nvext.agent_hints.latency_sensitivity": "orders the queue of a busy server",
    "nvext.agent_hints.speculative_prefill": "the test does not wait for the next prompt",
    "cache_control": "the prefix cache is always on",
    "tools[].cache_control": "the prefix cache is always on",
    "tools[].eager_input_streaming": "arguments are always streamed",
    "modalities": "text is the only one",
    "tools[].type": "the type of the test's own tools",
    "tools[].function": "contains the test's own tool",
    "tools[].custom": "contains the test's own tool",
    "tools[].tools": "of a namespace only",
    "tools[].execution": "of a tool search only",
    "store": "the test does not retrieve responses",
    "thinking.clear_thinking": "about the reasoning of earlier turns",
    "reasoning.context": "about the reasoning of earlier turns",
    "context_management": "about the reasoning of earlier turns",
    "context_management.edits": "about the reasoning of earlier turns",
    "nvext.reasoning_retention": "about the reasoning of earlier turns",
    "truncation": "of a prompt that exceeds the context window only",
    "best_of": "an error only if it differs from `n`",
    "stream_options": "only its members have effects",
}
OUTPUT = "<think>\nLet me think about this.\n</think>\n\nHello."
TEMPLATE = _TEMPLATE.replace(
    "<|im_start|>assistant\n{% endif %}",
    "<|im_start|>assistant\n{% if reasoning_effort %}Effort: {{ reasoning_effort }}\n{% endif %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif %}",
)


def test_every_field_is_honoured_rejected_or_reported() -> None:
    async def scene() -> None:
        silent = []
        async with serving(template=TEMPLATE) as stage:
            stage.engine.capabilities = EngineCapabilities(
                constraints=("gbnf",), logprobs=True, sampling=frozenset(OPTIONAL_SAMPLING)
            )
            stage.engine.plan = stage.engine.script(OUTPUT)
            for registry in FIELD_REGISTRIES:
                for field in registry.fields:
                    if field.name not in UNSEEN:
                        fault = await silence(stage, registry, field)
                        silent += [f"{registry.api}: {field.name}: {fault}"] if fault else []
        assert not silent, "\n".join(silent)

    run(scene)


def test_undeclared_fields_are_reported_unrequested() -> None:
    async def scene() -> None:
        async with serving() as stage:
            for api, path in PATHS.items():
                reply = await stage.request("POST", path, BODIES[api] | {"of_tomorrow": 1})
                assert reply.status == 200
                assert reply.headers["x-dovetail-diagnostics"] == "ignored:of_tomorrow"
                reply = await stage.request("POST", path, BODIES[api])
                assert "x-dovetail-diagnostics" not in reply.headers

    run(scene)


def test_effort_without_effect_is_reported() -> None:
    """A template without levels of effort cannot honour the hint."""
    efforts: dict[str, dict[str, Any]] = {
        "chat": {"reasoning_effort": "high"},
        "responses": {"reasoning": {"effort": "high"}},
        "messages": {"output_config": {"effort": "high"}},
    }

    async def scene() -> None:
        for template, reported in ((_TEMPLATE, True), (TEMPLATE, False)):
            async with serving(template=template) as stage:
                for api, effort in efforts.items():
                    reply = await stage.request("POST", PATHS[api], BODIES[api] | effort)
                    findings = reply.headers.get("x-dovetail-diagnostics", "")
                    assert ("effort_ignored" in findings) is reported, (api, findings)

    run(scene)


def test_names_of_fields_cannot_break_headers() -> None:
    async def scene() -> None:
        async with serving() as stage:
            body: dict[str, Any] = {f"f{n}": 1 for n in range(100)}
            body = {"a\r\nset-cookie: x, y": 1, "é" * 500: 1} | body
            reply = await stage.request("POST", PATHS["chat"], BODIES["chat"] | body)
            notes = reply.headers["x-dovetail-diagnostics"].split(", ")
            assert notes[:2] == ["ignored:a_set-cookie: x_ y", "ignored:_"]
            assert (len(notes), notes[-1]) == (65, "more:38")

    run(scene)


def test_unsupported_parameters_are_rejected_with_their_field() -> None:
    async def scene() -> None:
        async with serving() as stage:
            stage.engine.capabilities = EngineCapabilities()
            cases: dict[str, Any] = {
                "min_tokens": 5,
                "ignore_eos": True,
                "logit_bias": {"5": 1},
                "logprobs": True,
                "response_format": {"type": "json_object"},
                "guided_regex": "a+",
            }
            for name, value in cases.items():
                reply = await stage.request("POST", PATHS["chat"], BODIES["chat"] | {name: value})
                assert (reply.status, reply.json["error"]["param"]) == (400, name)
            body = BODIES["chat"] | {"tools": [TOOLS["chat"]], "tool_choice": "required"}
            reply = await stage.request("POST", PATHS["chat"], body)
            assert (reply.status, reply.json["error"]["param"]) == (400, "tool_choice")
            format = {"type": "json_schema", "schema": {"type": "object"}}
            body = BODIES["messages"] | {"output_config": {"format": format}}
            reply = await stage.request("POST", PATHS["messages"], body)
            assert reply.json["error"]["message"].startswith("output_config.format: ")
            body = BODIES["responses"] | {"text": {"format": {"type": "json_object"}}}
            reply = await stage.request("POST", PATHS["responses"], body)
            assert (reply.status, reply.json["error"]["param"]) == (400, "text.format")

    run(scene)


def test_findings_during_a_stream_are_comments() -> None:
    async def scene() -> None:
        async with serving() as stage:
            broken = '<tool_call>\n{"name": "look_up", "arguments": {"a": "\n"}}\n</tool_call>'
            stage.engine.plan = stage.engine.script("Hello. " + broken)
            for api in ("messages", "responses", "chat"):
                body = BODIES[api] | {"tools": [TOOLS[api]], "stream": True}
                reply = await stage.request("POST", PATHS[api], body)
                comments = [
                    line for line in reply.body.decode().split("\n\n") if line.startswith(": x")
                ]
                assert comments == [": x-dovetail-diagnostics: control_character_in_string"], (
                    reply.body
                )
                whole = await stage.request("POST", PATHS[api], body | {"stream": False})
                assert whole.headers["x-dovetail-diagnostics"] == "control_character_in_string"

    run(scene)


def test_responses_errors_name_input() -> None:
    async def scene() -> None:
        async with serving(max_context=64) as stage:
            body = BODIES["responses"] | {"input": "x" * 100}
            reply = await stage.request("POST", PATHS["responses"], body)
            assert (reply.status, reply.json["error"]["param"]) == (400, "input")
            body = BODIES["chat"] | {"messages": [{"role": "user", "content": "x" * 100}]}
            reply = await stage.request("POST", PATHS["chat"], body)
            assert (reply.status, reply.json["error"]["param"]) == (400, "messages")

    run(scene)


async def silence(stage: Stage, registry: FieldRegistry, field: Field) -> str:
    """Return how a field is ignored, or nothing if it is not."""
    base = body_for(registry.api, field.name)
    before, before_engine = await send(stage, registry.api, base)
    body = put(json.loads(json.dumps(base)), field.name, field.example)
    after, engine = await send(stage, registry.api, body)
    if after.status != 200:
        named = field.name.replace("[]", "[0]") in after.body.decode()
        return "" if named and 400 <= after.status < 500 else f"{after.status} {after.body!r}"
    if field.support == "rejected":
        return "accepted"
    reported = f"ignored:{field.name}" in after.headers.get("x-dovetail-diagnostics", "")
    if field.support == "reported":
        return "" if reported else "not reported"
    changed = engine != before_engine or shown(after) != shown(before)
    return "" if changed and not reported else f"no effect, reported: {reported}"


async def send(stage: Stage, api: str, body: dict[str, Any]) -> tuple[Reply, list[EngineRequest]]:
    stage.engine.requests.clear()
    reply = await stage.request("POST", PATHS[api], body)
    requests = [msgspec.structs.replace(one, id="") for one in stage.engine.requests]
    return reply, requests
