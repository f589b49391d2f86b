"""The requests to Dynamo's frontend: the body, `nvext` and the headers of the session."""

import json
from array import array
from typing import Any

import pytest

from dovetail.engines.dynamo.client import encode_request, session_headers
from dovetail.engines.engine import Constraint, ConstraintSyntax, EngineRequest
from dovetail.engines.token_ids import PromptEncoder
from dovetail_model import Sampling, Unsupported

PROMPT = array("I", [1, 2, 3])


def make_request(**more: Any) -> EngineRequest:
    return EngineRequest("r", PROMPT, 10, **more)


def encode(**more: Any) -> Any:
    return json.loads(encode_request(make_request(**more), PromptEncoder(), "m"))


def test_plain_request_has_only_known_fields() -> None:
    """The frontend rejects unknown fields, also `request_id` and `return_token_ids`."""
    assert encode() == {
        "model": "m",
        "prompt": [1, 2, 3],
        "max_tokens": 10,
        "stream": True,
        "stream_options": {"include_usage": True},
        "nvext": {"extra_fields": ["completion_token_ids", "stop_reason"]},
    }
    assert session_headers(make_request()) == {}


def test_sampling_and_stop_ids() -> None:
    sampling = Sampling(temperature=0.5, top_k=20, seed=-1, min_tokens=2, logprobs=3)
    body = encode(sampling=sampling, stop_ids=frozenset({9, 8}))
    assert (body["temperature"], body["top_k"], body["min_tokens"]) == (0.5, 20, 2)
    assert body["seed"] == 2**63 - 1  # parsed as a signed integer of 64 bits
    assert (body["logprobs"], body["return_tokens_as_token_ids"]) == (3, True)
    assert body["stop_token_ids"] == [8, 9]
    assert "stop" not in body


@pytest.mark.parametrize(
    ("hints", "sent"),
    [
        ({"priority": 7}, {"priority": 7}),  # higher runs first on both sides
        ({"priority": -100}, {"priority": -100}),
        ({"priority": 2**40}, {"priority": 2**31 - 1}),
        ({"priority": -(2**40)}, {"priority": -(2**31)}),
        ({"strict_priority": 3}, {"strict_priority": 3}),
        ({"expected_tokens": 500}, {"osl": 500}),
        ({"priority": 0, "strict_priority": 0, "expected_tokens": None}, None),
    ],
)
def test_hints(hints: dict[str, int], sent: dict[str, int] | None) -> None:
    assert encode(**hints)["nvext"].get("agent_hints") == sent


def test_cache_salt() -> None:
    assert encode(cache_salt="1:a/")["nvext"]["cache_salt"] == "1:a/"


def test_session_headers() -> None:
    request = make_request(session="4:acme/one", parent_session="4:acme/two", ends_session=True)
    assert session_headers(request) == {
        "x-dynamo-session-id": "4:acme/one",
        "x-dynamo-parent-session-id": "4:acme/two",
        "x-dynamo-session-final": "true",
    }


@pytest.mark.parametrize("session", ["sitzung-ä", "a\nb", " a", "a" * 1000, "\ud800"])
def test_session_that_is_no_header_value_is_hashed(session: str) -> None:
    value = session_headers(make_request(session=session))["x-dynamo-session-id"]
    assert len(value) == 32
    assert value != session_headers(make_request(session=session + "x"))["x-dynamo-session-id"]


@pytest.mark.parametrize(
    ("syntax", "text", "field", "value"),
    [
        ("json_schema", '{"b": 1, "a": 2}', "guided_json", {"b": 1, "a": 2}),
        ("ebnf", 'root ::= "a"', "guided_grammar", 'root ::= "a"'),
        ("lark", 'start: "a"', "guided_grammar", 'start: "a"'),
    ],
)
def test_constraints(syntax: ConstraintSyntax, text: str, field: str, value: Any) -> None:
    assert encode(constraint=Constraint(syntax, text))[field] == value


def test_structural_tags_are_not_supported() -> None:
    with pytest.raises(Unsupported, match="structural_tag"):
        encode(constraint=Constraint("structural_tag", "{}"))
