"""Encoded requests for SGLang, its errors, and discovery of a server."""

import asyncio
import json
from array import array
from typing import Any

import pytest
from scripted_fixture import TOKENIZER
from sglang_fixture import (
    MODEL_INFO,
    MODELS,
    PATHS,
    SERVER_INFO,
    FakeSglang,
    Json,
    listening,
    make_request,
)

from dovetail.engines.engine import Constraint, ConstraintSyntax, EngineRequest, RemoteModel
from dovetail.engines.registry import EngineSetup, EngineSetupError, create_engine, discover_model
from dovetail.engines.sglang import SglangEngine, SglangOptions
from dovetail.engines.sglang.discovery import PriorityOrder, SglangServerInfo, parse_server_info
from dovetail.engines.sglang.frames import sglang_error_from_status
from dovetail.engines.sglang.request import encode_request
from dovetail.engines.token_ids import PromptEncoder
from dovetail.net.http_client import Endpoint
from dovetail_model import (
    ContextOverflow,
    DovetailError,
    EngineError,
    EngineUnavailable,
    InvalidRequest,
    Overloaded,
    Sampling,
)


def encoded(request: EngineRequest, priority: PriorityOrder | None = None) -> Json:
    body: Json = json.loads(encode_request(request, PromptEncoder(), "rid", priority))
    return body


def params(**more: Any) -> Json:
    fields: Json = encoded(make_request(**more))["sampling_params"]
    return fields


def test_plain_request() -> None:
    assert encoded(EngineRequest("r", array("I", [7, 8, 9]), 40)) == {
        "rid": "rid",
        "input_ids": [7, 8, 9],
        "sampling_params": {
            "max_new_tokens": 40,
            "skip_special_tokens": False,
            "no_stop_trim": True,
        },
        "stream": True,
    }


def test_only_set_fields_are_sent() -> None:
    sampling = Sampling(temperature=0.0, top_p=0.9, top_k=5, min_p=0.1, seed=2**63 + 3)
    fields = params(sampling=sampling, stop_ids=frozenset({9, 4}))
    assert {name: fields[name] for name in ("temperature", "top_p", "top_k", "min_p")} == {
        "temperature": 0.0,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
    }
    assert fields["sampling_seed"] == 3
    assert fields["stop_token_ids"] == [4, 9]
    assert "repetition_penalty" not in fields
    penalties = Sampling(presence_penalty=1, frequency_penalty=-1, repetition_penalty=1.1, top_k=0)
    fields = params(sampling=penalties)
    assert (fields["presence_penalty"], fields["frequency_penalty"]) == (1, -1)
    assert (fields["repetition_penalty"], fields["top_k"]) == (1.1, -1)


@pytest.mark.parametrize(
    ("syntax", "member"),
    [
        ("structural_tag", "structural_tag"),
        ("json_schema", "json_schema"),
        ("ebnf", "ebnf"),
        ("lark", "ebnf"),
        ("gbnf", "ebnf"),
    ],
)
def test_constraints(syntax: ConstraintSyntax, member: str) -> None:
    fields = params(constraint=Constraint(syntax, "root"))
    assert {name for name in fields if fields[name] == "root"} == {member}


@pytest.mark.parametrize(("priority", "number"), [("higher", 3), ("lower", -3), (None, None)])
def test_higher_priority_runs_sooner_in_either_order(
    priority: PriorityOrder | None, number: int | None
) -> None:
    assert encoded(make_request(priority=3), priority).get("priority") == number


def test_every_request_has_a_priority_if_the_server_uses_them() -> None:
    assert encoded(make_request(), "higher")["priority"] == 0


def test_sessions_and_salts() -> None:
    body = encoded(make_request(session="s", cache_salt="k"))
    assert (body["session_id"], body["extra_key"]) == ("s", "k")
    assert "session_params" not in body
    assert not {"session_id", "extra_key"} & encoded(make_request()).keys()


def test_logprobs_are_requested() -> None:
    body = encoded(make_request(sampling=Sampling(logprobs=2)))
    assert (body["return_logprob"], body["top_logprobs_num"]) == (True, 2)
    assert "return_logprob" not in encoded(make_request())


LONG = "Requested token count exceeds the model's maximum context length of 8 tokens."


@pytest.mark.parametrize(
    ("status", "content", "kind", "words"),
    [
        (400, {"error": {"message": LONG}}, ContextOverflow, "maximum context length"),
        (400, {"error": "unknown field `x`"}, InvalidRequest, "unknown field"),
        (400, {"object": "error", "message": "bad rid"}, InvalidRequest, "bad rid"),
        (401, {"error": "Unauthorized"}, EngineError, "rejected the configured API key"),
        (404, {"detail": "Not Found"}, EngineUnavailable, "does not have this model or path"),
        (503, {"error": {"message": "The request queue is full."}}, Overloaded, "queue is full"),
        (503, {}, EngineUnavailable, "not ready"),
        (500, "Internal Server Error", EngineError, "failed"),
    ],
)
def test_rejections(status: int, content: Any, kind: type[DovetailError], words: str) -> None:
    error = sglang_error_from_status(status, json.dumps(content).encode())
    assert type(error) is kind
    assert words in error.message


OLD = {f"/get{path.replace('/', '_')}": info for path, info in PATHS.items() if "info" in path}
DYNAMO: Json = {"data": [{"id": "tiny", "object": "model", "context_window": 4096}]}
DISCOVERIES: list[tuple[str, dict[str, Json], RemoteModel]] = [
    ("now", PATHS, RemoteModel("tiny", ("tiny",), "/models/words", 8192, "0.5.23")),
    (
        "before",
        {**OLD, "/v1/models": MODELS},
        RemoteModel("tiny", ("tiny",), "/models/words", 8192, "0.5.23"),
    ),
    ("a router", {"/v1/models": DYNAMO}, RemoteModel("tiny", ("tiny",), None, 4096)),
    (
        "without a list",
        {"/model_info": {"model_path": "org/tiny"}, "/server_info": {"context_length": 77}},
        RemoteModel("org/tiny", ("org/tiny",), "org/tiny", 77),
    ),
    (
        "with adapters",
        {
            "/model_info": MODEL_INFO,
            "/v1/models": {"data": [*MODELS["data"], {"id": "lora", "parent": "tiny"}]},
        },
        RemoteModel("tiny", ("tiny",), "/models/words", 8192),
    ),
    (
        "with a list of strange things",
        {"/v1/models": {"data": [{"id": "tiny", "max_model_len": True}, 7, {"id": None}]}},
        RemoteModel("tiny", ("tiny",)),
    ),
]


def found(paths: dict[str, Json]) -> RemoteModel:
    async def main() -> RemoteModel:
        async with listening(FakeSglang(paths=paths)) as endpoint:
            return await discover_model("sglang", endpoint)

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("paths", "model"), [d[1:] for d in DISCOVERIES], ids=[d[0] for d in DISCOVERIES]
)
def test_discovery(paths: dict[str, Json], model: RemoteModel) -> None:
    assert found(paths) == model


def test_server_that_is_not_sglang() -> None:
    with pytest.raises(EngineError, match="is it SGLang"):
        found({"/v1/models": {"data": "what"}})


VLLM_CARD = {"id": "tiny", "root": "tiny", "max_model_len": 8192}


@pytest.mark.parametrize(
    "paths",
    [
        {"/v1/models": {"data": [{**VLLM_CARD, "owned_by": "vllm"}]}},
        {"/v1/models": {"data": [VLLM_CARD]}, "/version": {"version": "0.32.0"}},
    ],
)
def test_vllm_is_rejected_with_the_engine_to_use(paths: dict[str, Json]) -> None:
    """Its model list is sufficient for discovery, but every request would fail."""
    with pytest.raises(EngineSetupError, match=r"http://.* is vLLM: use --engine vllm"):
        found(paths)


def test_sglang_with_a_version_is_accepted() -> None:
    assert found({**PATHS, "/version": {"version": "1"}}).name == "tiny"


XGRAMMAR: tuple[ConstraintSyntax, ...] = ("structural_tag", "ebnf", "json_schema")


@pytest.mark.parametrize(
    ("reported", "options", "facts"),
    [
        (None, {}, SglangServerInfo()),
        (None, {"priority": "lower"}, SglangServerInfo(priority_order="lower")),
        (None, {"grammar_backend": "outlines"}, SglangServerInfo(constraints=("json_schema",))),
        ({}, {}, SglangServerInfo(True, constraints=XGRAMMAR)),
        ({"enable_priority_scheduling": True}, {}, SglangServerInfo(True, "higher", XGRAMMAR)),
        (
            {"enable_priority_scheduling": True},
            {"priority": "off"},
            SglangServerInfo(True, None, XGRAMMAR),
        ),
        ({"schedule_low_priority_values_first": True}, {}, SglangServerInfo(True, None, XGRAMMAR)),
        (
            {"enable_priority_scheduling": True, "schedule_low_priority_values_first": True},
            {},
            SglangServerInfo(True, "lower", XGRAMMAR),
        ),
        ({"grammar_backend": "none"}, {}, SglangServerInfo(True)),
        (
            {"grammar_backend": "llguidance"},
            {},
            SglangServerInfo(True, constraints=("lark", "gbnf", "ebnf", "json_schema")),
        ),
        ({"grammar_backend": "somebody's"}, {}, SglangServerInfo(True)),
        (
            {"stream_output": True, "version": "0.4"},
            {},
            SglangServerInfo(True, None, XGRAMMAR, None, True, "0.4"),
        ),
        (SERVER_INFO, {}, SglangServerInfo(True, None, XGRAMMAR, 8186, False, "0.5.23")),
        (
            {"context_length": 4096, "max_req_input_len": 9000, "speculative_eagle_topk": 4}
            | {"speculative_num_steps": 3, "speculative_num_draft_tokens": 8},
            {},
            SglangServerInfo(True, None, XGRAMMAR, 4084),
        ),
    ],
)
def test_facts(reported: Json | None, options: Json, facts: SglangServerInfo) -> None:
    assert parse_server_info(reported, SglangOptions(**options)) == facts


def setup(**more: Any) -> EngineSetup:
    return EngineSetup(TOKENIZER, **more)


def test_engine_is_created_by_name() -> None:
    remote = RemoteModel("tiny", context_length=100)
    made = create_engine("sglang", setup(endpoint=Endpoint(), remote=remote))
    assert isinstance(made, SglangEngine)
    assert made.capabilities.context_length == 100
    made = create_engine("sglang", setup(endpoint=Endpoint(), remote=remote, context_length=50))
    assert made.capabilities.context_length == 50


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, "requires the address of a server: set --engine-url"),
        ({"endpoint": Endpoint(), "options": {"speed": 1}}, "unknown field `speed`"),
        ({"endpoint": Endpoint(), "options": {"priority": "x"}}, r"\$.priority"),
    ],
)
def test_setup_errors_are_explained(more: Json, words: str) -> None:
    with pytest.raises(EngineSetupError, match=words):
        create_engine("sglang", setup(**more))
