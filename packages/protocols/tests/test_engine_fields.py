"""Fields of vLLM, SGLang and llama.cpp in every API."""

from typing import Any

import msgspec
import pytest

from dovetail_model import InvalidRequest, OutputFormat, Request, Sampling, Unsupported
from dovetail_protocols import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Codec

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
HELLO = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
BODIES: list[tuple[Codec, dict[str, Any]]] = [
    (CHAT, HELLO),
    (MESSAGES, HELLO),
    (RESPONSES, {"model": "m", "input": "Hi"}),
    (COMPLETIONS, {"model": "m", "prompt": "Hi"}),
]
GRAMMAR = 'root ::= "yes" | "no"'


def decode(codec: Codec = CHAT, sent: dict[str, Any] = HELLO, **fields: Any) -> Request:
    return codec.decode(msgspec.json.encode(sent | fields), {})


def strict(kind: Any, field: str, **more: Any) -> OutputFormat:
    return OutputFormat(kind, strict=True, field=field, **more)


FORMATS: list[tuple[dict[str, Any], OutputFormat]] = [
    ({"guided_json": SCHEMA}, strict("json_schema", "guided_json", schema=SCHEMA)),
    (
        {"guided_json": msgspec.json.encode(SCHEMA).decode()},
        strict("json_schema", "guided_json", schema=SCHEMA),
    ),
    ({"guided_regex": "[a-z]+"}, strict("regex", "guided_regex", text="[a-z]+")),
    ({"guided_choice": ["a", "b"]}, strict("choice", "guided_choice", choices=("a", "b"))),
    ({"guided_grammar": GRAMMAR}, strict("grammar", "guided_grammar", text=GRAMMAR)),
    ({"grammar": GRAMMAR}, strict("grammar", "grammar", text=GRAMMAR)),
    ({"grammar": ""}, OutputFormat()),
    ({"json_schema": SCHEMA}, strict("json_schema", "json_schema", schema=SCHEMA)),
    ({"regex": "a|b"}, strict("regex", "regex", text="a|b")),
    ({"ebnf": GRAMMAR}, strict("grammar", "ebnf", text=GRAMMAR)),
    (
        {"structured_outputs": {"json": SCHEMA}},
        strict("json_schema", "structured_outputs.json", schema=SCHEMA),
    ),
    (
        {"structured_outputs": {"json_object": True}},
        OutputFormat("json_object", field="structured_outputs.json_object"),
    ),
    ({"structured_outputs": {"json_object": False}}, OutputFormat()),
    (
        {"structured_outputs": {"choice": ["a"]}},
        strict("choice", "structured_outputs.choice", choices=("a",)),
    ),
    (
        {"structured_outputs": {"regex": "a"}},
        strict("regex", "structured_outputs.regex", text="a"),
    ),
    (
        {"structured_outputs": {"grammar": GRAMMAR}},
        strict("grammar", "structured_outputs.grammar", text=GRAMMAR),
    ),
]


@pytest.mark.parametrize(("codec", "body"), BODIES, ids=lambda one: getattr(one, "name", ""))
@pytest.mark.parametrize(("fields", "output"), FORMATS, ids=str)
def test_output_formats(
    codec: Codec, body: dict[str, Any], fields: dict[str, Any], output: OutputFormat
) -> None:
    request = decode(codec, body, **fields)
    assert (request.output, request.ignored) == (output, ())


@pytest.mark.parametrize(("codec", "body"), BODIES, ids=lambda one: getattr(one, "name", ""))
def test_sampling(codec: Codec, body: dict[str, Any]) -> None:
    request = decode(
        codec,
        body,
        min_tokens=3,
        ignore_eos=True,
        stop_token_ids=[5, 6],
        logit_bias={"7": -100, "8": 1.5},
    )
    assert request.sampling == Sampling(
        min_tokens=3,
        ignore_eos=True,
        stop_token_ids=(5, 6),
        logit_bias=((7, -100.0), (8, 1.5)),
    )
    assert request.ignored == ()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"guided_json": "{"}, "guided_json"),
    ({"guided_json": {"type": "strnig"}}, "guided_json.type"),
    ({"guided_json": 5}, "guided_json"),
    ({"guided_choice": []}, "guided_choice"),
    ({"guided_choice": "a"}, "guided_choice"),
    ({"json_schema": {"required": "a"}}, "json_schema.required"),
    ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
    ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex"),
    ({"guided_regex": "a", "guided_json": {}}, "guided_regex"),
    ({"regex": "a", "response_format": {"type": "json_object"}}, "regex"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"logit_bias": {"7": 101}}, "logit_bias[...]"),
    ({"logit_bias": {"hello": 1}}, "logit_bias"),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
    ({"ignore_eos": "yes"}, "ignore_eos"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=str)
def test_invalid_values_are_rejected_with_the_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises((InvalidRequest, Unsupported)) as caught:
        decode(**fields).client.reject_unsupported()
    assert caught.value.param == param
