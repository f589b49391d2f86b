"""Scripted mode of `dovetail verify`: Dovetail passes all checks, and each can fail."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from real_models import PAIRS, lay_out, require
from server_process import NAME, served
from verify_faulty_servers import (
    ExchangeFault,
    FaultyTarget,
    Json,
    blank_text,
    buffered,
    clean_end,
    counts,
    forgotten,
    grouped,
    guessed,
    one_piece,
    show_ids,
    texts,
)

from dovetail.engines.scripted import parse_script
from dovetail.launch.scripted_server import prepare_scripted_server
from dovetail_verify.check import Check, CheckOutcome, CheckResult
from dovetail_verify.http_client import Endpoint
from dovetail_verify.scripted import CHECKS, FileRecording, render_script
from dovetail_verify.scripted.scenarios import INTERLEAVED, LAST_LINE
from dovetail_verify.suite import run_checks, select_checks
from dovetail_verify.target import RecordedRequest, TargetServer

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TargetServer]:
    """Start Dovetail as `dovetail verify` does."""
    own = prepare_scripted_server(tmp_path_factory.mktemp("own"))
    with served(*own.arguments) as running:
        yield TargetServer(
            Endpoint.parse(running.url), own.model, recording=FileRecording(own.record_path)
        )


def judge(target: TargetServer, checks: list[Check]) -> list[CheckResult]:
    return asyncio.run(run_checks(target, checks, lambda check, result: None))


@pytest.mark.long
def test_dovetail_passes_every_check(target: TargetServer) -> None:
    results = judge(target, list(CHECKS))
    wrong = {
        f.check.id: f"{f.outcome}: {f.message}" for f in results if f.outcome != CheckOutcome.PASS
    }
    assert wrong == {}
    assert len(results) > 60


#: Families with a different notation; the template of one starts the reasoning in the prompt.
FAMILIES = ("GLM-4.7", "Kimi-K2-Thinking")
SLOW = ("call.at-once", "argument.early", "hang-up")  # these wait for the script's pauses


@pytest.mark.parametrize("name", FAMILIES)
def test_dovetail_passes_with_other_families(name: str, tmp_path: Path) -> None:
    pair = next(pair for pair in PAIRS if pair.name == name)
    require(pair)
    (tmp_path / "model").mkdir()
    lay_out(pair, tmp_path / "model")
    script, record = tmp_path / "script.yaml", tmp_path / "record"
    script.write_text(render_script(f"{pair.tool_parser}+{pair.reasoning_parser}"), "utf-8")
    engine = ("--engine", "scripted", "--script", script, "--engine-option", f"record={record}")
    parsers = ("--tool-call-parser", pair.tool_parser, "--reasoning-parser", pair.reasoning_parser)
    quick = [check for check in CHECKS if not check.id.endswith(SLOW)]
    with served(tmp_path / "model", *engine, *parsers, "--served-model-name", NAME) as running:
        recording = FileRecording(record)
        results = judge(TargetServer(Endpoint.parse(running.url), NAME, recording=recording), quick)
    assert {f.check.id: f.message for f in results if f.outcome != CheckOutcome.PASS} == {}


def _lose(kind: str, text: str) -> str:
    return "" if kind == "text" else text


def _with_marker(kind: str, text: str) -> str:
    return text.replace("B", "</think>B") if kind == "text" else text


def _damage(kind: str, text: str) -> str:
    return text.replace("漢", "\ufffd")


def _drop_marker(kind: str, text: str) -> str:
    return text.replace("#", "") if "input" in kind else text


def _cached(key: str, value: int) -> int:
    return 0 if "cache" in key else value


def _estimate(key: str, value: int) -> int:
    return value + 7 if key in ("input_tokens", "prompt_tokens") else value


def _billing(path: str, body: Json) -> Json:
    for block in body["system"]:
        block["text"] = block["text"].replace("x-anthropic-billing-header", "x-header")
    return body


def _lists_are_wrapped(path: str, body: Json) -> Json:
    content = body["messages"][-1]["content"]
    if isinstance(content, list):
        content[0]["text"] = f"[{content[0]['text']}]"
    return body


def _refused(path: str, body: Json) -> Json:
    turns = body.get("messages") or body.get("input") or []
    return {"model": "another"} if len(turns) > 2 else body


def _as_control(record: RecordedRequest) -> RecordedRequest:
    """Simulate a tokenizer that converts spelled-out control tokens to tokens."""
    spelled = record.prompt_text.count("<|im_end|>") - record.prompt_tokens.count(
        record.output_tokens[-1]
    )
    tokens = (*record.prompt_tokens, *(record.output_tokens[-1:] * spelled))
    return msgspec.structs.replace(record, prompt_tokens=tokens)


def _grouped_prompt(record: RecordedRequest) -> RecordedRequest:
    """Simulate a template that has one field for all reasoning of a turn."""
    first, second = (part.text for part in INTERLEAVED.parts if part.kind == "reasoning")
    text = record.prompt_text.replace(second, "").replace(first, f"{first} {second}")
    return msgspec.structs.replace(record, prompt_text=text)


def _hoisted(record: RecordedRequest) -> RecordedRequest:
    found = re.search(r"The reminder of \S+", record.prompt_text)
    return msgspec.structs.replace(
        record, prompt_text=f"{found[0] if found else ''} {record.prompt_text}"
    )


def _default_without_thinking(path: str, body: Json) -> Json:
    if "thinking" not in body:
        body["system"] = [*body["system"], {"type": "text", "text": "Do not think."}]
    return body


def _stop_in_text(path: str, body: Json) -> Json:
    return {**body, ("stop_sequences" if path.endswith("messages") else "stop"): ["begin with"]}


def _parallel(path: str, body: Json) -> Json:
    if path.endswith("messages"):
        choice = {**body["tool_choice"], "disable_parallel_tool_use": False}
        return {**body, "tool_choice": choice}
    return {**body, "parallel_tool_calls": True}


def _all_loaded(path: str, body: Json) -> Json:
    tools = [{k: v for k, v in tool.items() if k != "defer_loading"} for tool in body["tools"]]
    return {**body, "tools": tools}


def _only_loaded_may_be_named(path: str, body: Json) -> Json:
    choice = {"tool_choice": {"type": "tool", "name": "unknown"}} if "tool_choice" in body else {}
    return {**body, **choice}


def _all_allowed(path: str, body: Json) -> Json:
    return {**body, "tool_choice": "auto"}


def _fixed_retention(path: str, body: Json) -> Json:
    return {**body, "nvext": {"reasoning_retention": "none"}}


def _with_tools_in_order(record: RecordedRequest) -> RecordedRequest:
    """Simulate a head that follows the last order: its tokens differ from the first ones."""
    number = len(record.prompt_tokens)
    return msgspec.structs.replace(record, prompt_tokens=(number, *record.prompt_tokens[1:]))


#: Fault of a server -> the fault, the checks that must find it, and their message (a pattern).
FAULTS: dict[str, tuple[ExchangeFault, tuple[str, ...], str]] = {
    "calls are moved to the end": (
        ExchangeFault(change_response=grouped),
        ("*.order.stream", "*.order.whole", "*.order.text", "*.dispatch"),
        "received: reasoning|too late",
    ),
    "responses are buffered": (
        ExchangeFault(change_response=buffered),
        ("*.call.at-once", "*.argument.early"),
        r"0\.00 s before|0% of the argument",
    ),
    "arguments arrive in one chunk": (
        ExchangeFault(change_response=one_piece),
        ("*.argument.pieces",),
        r"1 chunk\(s\)",
    ),
    "whitespace is returned as text": (
        ExchangeFault(change_response=blank_text),
        ("*.white-space", "*.order.fields"),
        "only whitespace|did not generate",
    ),
    "a marker leaks": (
        ExchangeFault(change_response=texts(_with_marker)),
        ("*.orphan-closer",),
        "</think>Bergen",
    ),
    "text is lost": (
        ExchangeFault(change_response=texts(_lose)),
        ("*.malformed-call", "*.replay.accepted"),
        "not in the text|next response is ''",
    ),
    "characters are damaged": (
        ExchangeFault(change_response=texts(_damage)),
        ("*.letters",),
        "\ufffd",
    ),
    "arguments are changed": (
        ExchangeFault(change_response=texts(_drop_marker)),
        ("*.argument.markers",),
        "input of a call is",
    ),
    "truncated calls are completed": (
        ExchangeFault(change_response=guessed),
        ("*.call.cut",),
        "truncated call was completed",
    ),
    "failures look like normal ends": (
        ExchangeFault(change_response=clean_end),
        ("*.failure.*",),
        "stream ended with|status 200",
    ),
    "history is not recognized": (
        ExchangeFault(change_request=forgotten),
        ("*.replay.order", "*.replay.moved", "*.replay.exact", "*.replay.exact-moved"),
        "not in the prompt|tokens match",
    ),
    "prompts are grouped": (
        ExchangeFault(change_record=_grouped_prompt),
        ("*.replay.order",),
        "is in the wrong place",
    ),
    "history is rejected": (
        ExchangeFault(change_request=_refused),
        ("*.replay.accepted",),
        "status 400",
    ),
    "ids are in the prompt": (
        ExchangeFault(change_request=show_ids),
        ("*.replay.ids",),
        "the prompt contains (toolu|call)_",
    ),
    "cached tokens are not reported": (
        ExchangeFault(change_response=counts(_cached)),
        ("*.replay.cached",),
        "usage reports 0",
    ),
    "tokens are estimated": (
        ExchangeFault(change_response=counts(_estimate)),
        ("*.usage", "*.usage.start", "*.count"),
        "the prompt has",
    ),
    "the billing line is in the prompt": (
        ExchangeFault(change_request=_billing),
        ("*.billing-line",),
        "is in the prompt",
    ),
    "lists differ from strings": (
        ExchangeFault(change_request=_lists_are_wrapped),
        ("*.string-or-list",),
        "the two prompts differ",
    ),
    "reminders are moved to the front": (
        ExchangeFault(change_record=_hoisted),
        ("*.system-in-place",),
        "before the user's message",
    ),
    "thinking is off by default": (
        ExchangeFault(change_request=_default_without_thinking),
        ("*.thinking-unsaid",),
        "the two prompts differ",
    ),
    "stop sequences end other output": (
        ExchangeFault(change_request=_stop_in_text),
        ("*.fields.stop",),
        "received: reasoning",
    ),
    "a named tool is called twice": (
        ExchangeFault(change_request=_parallel),
        ("*.fields.named-tool",),
        "received 2",
    ),
    "deferred tools are in the head": (
        ExchangeFault(change_request=_all_loaded),
        ("*.tools.reference", "*.tools.placeholder"),
        "in the prompt",
    ),
    "loaded tools are not callable": (
        ExchangeFault(change_request=_only_loaded_may_be_named),
        ("*.tools.loaded",),
        "returned status 400",
    ),
    "allowed_tools is ignored": (
        ExchangeFault(change_request=_all_allowed),
        ("*.tools.allowed",),
        "is not allowed",
    ),
    "the head has the last order of tools": (
        ExchangeFault(change_record=_with_tools_in_order),
        ("*.tools.order",),
        "tokens match",
    ),
    "retention is ignored": (
        ExchangeFault(change_request=_fixed_retention),
        ("*.fields.retention",),
        "`all`: the reasoning is not in the prompt",
    ),
    "generations are not cancelled": (
        ExchangeFault(
            change_record=lambda record: msgspec.structs.replace(record, output_text=LAST_LINE)
        ),
        ("*.hang-up",),
        "generated the complete output",
    ),
    "spelled-out control tokens are tokens": (
        ExchangeFault(change_record=_as_control),
        ("*.control-tokens",),
        "became 1 control token",
    ),
}


SLOW_FAULT = "responses are buffered"  # its checks wait for output that arrives late


@pytest.mark.parametrize(
    "fault",
    [pytest.param(one, marks=pytest.mark.long if one == SLOW_FAULT else ()) for one in FAULTS],
)
def test_checks_find_the_fault(target: TargetServer, fault: str) -> None:
    exchange_fault, patterns, reason = FAULTS[fault]
    assert isinstance(target.recording, FileRecording)
    faulty = FaultyTarget(target, target.recording, exchange_fault)
    results = judge(faulty, select_checks(CHECKS, patterns))
    assert results
    seen = [
        f.check.id
        for f in results
        if f.outcome == CheckOutcome.FAIL and re.search(reason, f.message)
    ]
    assert seen == [f.check.id for f in results]


def test_every_check_has_a_fault() -> None:
    seen = {
        check.id for _, patterns, _ in FAULTS.values() for check in select_checks(CHECKS, patterns)
    }
    assert {check.id for check in CHECKS} - seen == set()


@pytest.mark.parametrize(
    "family", ["qwen3_coder", "hermes+qwen3", "glm47", "minimax_m2", "kimi_k2+kimi_k25"]
)
def test_script_is_valid_in_every_notation(family: str) -> None:
    script = parse_script(render_script(family))
    assert len(script.rules) > 10
