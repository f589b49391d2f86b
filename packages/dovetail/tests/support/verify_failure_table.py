"""One fault per black-box check, which the check must find."""

import re
from collections.abc import Callable
from dataclasses import replace

from verify_failures import (
    AsgiRequest,
    AsgiResponse,
    Fault,
    Json,
    change_body,
    change_errors,
    change_frames,
    make_response,
    refuse_matching,
    repeat_events,
    replace_text,
    respond_when,
    with_header,
    without_events,
    without_fields,
)

_APIS = ("messages", "responses", "chat")
_PROMPT = {"messages": "input_tokens", "responses": "input_tokens", "chat": "prompt_tokens"}
_PAGE = "<html>no</html>"


def _count(field: str, number: Callable[[AsgiRequest, int], int]) -> Fault:
    def change(request: AsgiRequest, value: Json) -> None:
        value["usage"][field] = number(request, value["usage"][field])

    return change_body(change)


def _blank_block(request: AsgiRequest, value: Json) -> None:
    value["content"].insert(0, {"type": "text", "text": "\n\n"})


def _counted_twice(request: AsgiRequest, value: Json) -> None:
    usage = value.get("usage", {})
    usage["input_tokens"] = usage.get("input_tokens", 0) + usage.get("cache_read_input_tokens", 0)


def _uncached_line(request: AsgiRequest, value: Json) -> None:
    if b".z9;" in request.body:
        value["usage"]["cache_read_input_tokens"] = 0


def _one_id_each(found: list[str]) -> list[str]:
    return [re.sub(r'"id":"chatcmpl-', f'"id":"{at}-', frame) for at, frame in enumerate(found)]


def _without_field(name: str, where: str) -> Fault:
    def change(request: AsgiRequest, value: Json) -> None:
        value.pop(name, None)

    return change_body(change, where)


def _everywhere() -> dict[str, Fault]:
    """Return the faults for checks that exist in every API."""
    found: dict[str, Fault] = {}
    for api in _APIS:
        prompt = _PROMPT[api]
        found |= {
            f"{api}.stream.same_as_whole": replace_text(
                '"(text|content)":"', r'"\1":"~', streamed=True
            ),
            f"{api}.stream.closes": Fault(linger=True),
            f"{api}.stream.headers": with_header("content-type", "text/plain"),
            f"{api}.stream.characters": replace_text("🦊", "\ufffd", streamed=True),
            f"{api}.ids.answer": replace_text("(msg_|resp_|chatcmpl-)[0-9a-f]+", r"\1same"),
            f"{api}.ids.call": replace_text("(toolu_|call_)[0-9a-f]{20,}", r"\1same"),
            f"{api}.call.dispatch": repeat_events("event: tool_call_dispatch"),
            f"{api}.structured": replace_text(r'"\{\\"title', r'"Sure: {\\"title'),
            f"{api}.fields.constraint": replace_text('"yes"', '"Yes, it is."'),
            f"{api}.fields.schema": change_errors(lambda response: replace(response, status=200)),
            f"{api}.fields.reported": with_header("x-dovetail-diagnostics", "none"),
            f"{api}.usage.same": replace_text(f'"{prompt}":[0-9]+', f'"{prompt}":1', streamed=True),
            f"{api}.usage.output": replace_text(
                '"(output|completion)_tokens":[0-9]+', r'"\1_tokens":0'
            ),
            f"{api}.usage.parts": _count(prompt, lambda request, n: n + (b"text" in request.body)),
            f"{api}.usage.metadata": _count(prompt, lambda request, n: len(request.body)),
            f"{api}.cache.repeated": replace_text(
                '"(cached_tokens|cache_read_input_tokens)":[0-9]+', r'"\1":0'
            ),
            f"{api}.errors.bad_json": change_errors(lambda response: replace(response, status=500)),
            f"{api}.errors.missing": change_errors(
                lambda response: make_response(400, '{"detail":"no"}')
            ),
            f"{api}.errors.wrong_type": change_errors(
                lambda response: make_response(400, _PAGE, "text/html")
            ),
            f"{api}.errors.model": respond_when(lambda request: True, 200, '{"model":"another"}'),
            f"{api}.errors.method": respond_when(lambda request: request.method == "PUT", 200),
        }
    return found


_MESSAGES = {
    "messages.whole.shape": replace_text('"type":"message"', '"type":"note"', streamed=False),
    "messages.stream.event_lines": replace_text("event: [a-z_]+\n", ""),
    "messages.stream.order": without_events("content_block_stop"),
    "messages.stream.kinds": replace_text('"thinking_delta"', '"text_delta"'),
    "messages.model.echo": replace_text('"model":"[^"]+"', '"model":"another"'),
    "messages.stream.signature": repeat_events("signature_delta"),
    "messages.stream.no_blank_text": change_body(_blank_block),
    "messages.stream.end": change_frames(lambda found: [*found, "data: [DONE]"]),
    "messages.stream.start_usage": replace_text(
        '"input_tokens":[0-9]+', '"input_tokens":3', streamed=True
    ),
    "messages.limit": replace_text('"stop_reason":"max_tokens"', '"stop_reason":"end_turn"'),
    "messages.stop": without_fields("stop_sequences"),
    "messages.call.arguments": replace_text('"get_weather"', '"getWeather"'),
    "messages.call.end": replace_text('"stop_reason":"tool_use"', '"stop_reason":"end_turn"'),
    "messages.accepts.beta_query": respond_when(lambda request: "beta=" in request.path, 404),
    "messages.accepts.claude_code": refuse_matching("context_management"),
    "messages.accepts.unknown": refuse_matching("a_field_of_tomorrow"),
    "messages.accepts.system_inside": refuse_matching('"role": "system"'),
    "messages.accepts.server_tools": refuse_matching("web_search_20250305"),
    "messages.accepts.server_tool_history": refuse_matching("server_tool_use"),
    "messages.server_tools.run": without_fields("tools", "tool_choice"),
    "responses.server_tools.run": without_fields("tools", "tool_choice"),
    "responses.accepts.server_tool_history": refuse_matching("web_search_call"),
    "messages.accepts.replay": refuse_matching('"signature"'),
    "messages.accepts.thinking_modes": refuse_matching('"disabled"'),
    "messages.accepts.keys": respond_when(lambda request: "authorization" in request.headers, 401),
    "messages.count_tokens.shape": replace_text('"input_tokens"', '"tokens"', where="count_tokens"),
    "messages.count_tokens.exact": replace_text("[0-9]+", "7", where="count_tokens"),
    "messages.edits.applied": replace_text(
        '"cleared_input_tokens":[0-9]+', '"cleared_input_tokens":1'
    ),
    "messages.edits.thinking": replace_text(
        '"cleared_thinking_turns":[0-9]+', '"cleared_thinking_turns":1'
    ),
    "messages.edits.compact": without_fields("context_management"),
    "messages.compaction": replace_text('"stop_reason":"compaction"', '"stop_reason":"end_turn"'),
    "messages.cache.excluded": change_body(_counted_twice, "/v1/messages"),
    "messages.cache.billing_line": change_body(_uncached_line),
    "messages.errors.too_long": replace_text("prompt is too long", "maximum context length"),
}

_RESPONSES = {
    "responses.whole.shape": replace_text('"total_tokens":[0-9]+', '"total_tokens":1'),
    "responses.stream.order": without_events("response.completed"),
    "responses.stream.indices": replace_text('"output_index":0', '"output_index":null'),
    "responses.stream.usage": replace_text('"output_tokens":', '"out":', streamed=True),
    "responses.stream.event_lines": replace_text("event: response.completed", "event: done"),
    "responses.stream.sequence": replace_text('"sequence_number":[0-9]+', '"sequence_number":1'),
    "responses.stream.items_done": without_events("response.output_item.done"),
    "responses.stream.output": change_frames(
        lambda found: [
            f.replace("Orange", "Red") if "response.completed" in f else f for f in found
        ]
    ),
    "responses.stream.text": repeat_events("response.output_text.delta"),
    "responses.call.deltas": without_events("response.function_call_arguments.delta"),
    "responses.ids.items": replace_text('"id":"(msg|rs|fc)_[0-9a-f]+"', '"id":"same"'),
    "responses.model.echo": with_header("openai-model", "another"),
    "responses.reasoning.summary": replace_text('"summary":', '"sum":'),
    "responses.reasoning.replayable": replace_text(
        '"encrypted_content":"[^"]*"', '"encrypted_content":null'
    ),
    "responses.limit": replace_text('"status":"incomplete"', '"status":"completed"'),
    "responses.call.arguments": replace_text(r'"arguments":"\{', '"arguments":"{{', streamed=False),
    "responses.call.end": replace_text('"status":"completed"', '"status":"incomplete"'),
    "responses.accepts.codex": refuse_matching("client_metadata"),
    "responses.accepts.string": refuse_matching('"input": "'),
    "responses.accepts.items": refuse_matching('"phase"'),
    "responses.accepts.replay": refuse_matching('"encrypted_content": null'),
    "responses.accepts.tools": refuse_matching('"tool_search"'),
    "responses.accepts.unknown": refuse_matching("a_tool_of_tomorrow"),
    "responses.call.custom": replace_text('"type":"custom_tool_call"', '"type":"function_call"'),
    "responses.call.namespace": replace_text('"namespace":"weather"', '"namespace":null'),
    "responses.websocket": respond_when(lambda request: request.method == "GET", 404),
    "responses.previous": without_fields("previous_response_id"),
    "responses.fields.input": change_errors(
        lambda response: make_response(400, '{"error":{"message":"no","type":"x"}}')
    ),
    "responses.truncation": without_fields("truncation"),
    "responses.conversations": without_fields("conversation"),
    "responses.errors.too_long": respond_when(lambda request: True, 400, ""),
}

_CHAT = {
    "chat.whole.shape": replace_text('"total_tokens":[0-9]+', '"total_tokens":1'),
    "chat.stream.shape": without_events("[DONE]"),
    "chat.stream.usage": without_events('"choices":[]'),
    "chat.stream.ids": change_frames(_one_id_each),
    "chat.call.deltas": replace_text('"tool_calls":\\[\\{"index":0,', '"tool_calls":[{"index":1,'),
    "chat.limit": replace_text('"finish_reason":"length"', '"finish_reason":"stop"'),
    "chat.stop": without_fields("stop"),
    "chat.call.arguments": replace_text(r'"arguments":"\{', '"arguments":"{{', streamed=False),
    "chat.call.end": replace_text('"finish_reason":"tool_calls"', '"finish_reason":"stop"'),
    "chat.accepts.replay": refuse_matching("reasoning_content"),
    "chat.accepts.null": refuse_matching('"content": null'),
    "chat.accepts.developer": refuse_matching('"developer"'),
    "chat.accepts.parts": refuse_matching(r'"content": \['),
    "chat.accepts.unknown": refuse_matching("a_field_of_tomorrow"),
    "chat.completion_limit": without_fields("max_completion_tokens"),
    "chat.choices": without_fields("n"),
    "chat.logprobs": without_fields("logprobs", "top_logprobs"),
    "chat.usage.tokenized": replace_text('"count":[0-9]+', '"count":7', where="tokenize"),
    "chat.errors.too_long": change_errors(lambda response: replace(response, status=500)),
}


def _closed(request: AsgiRequest, response: AsgiResponse) -> AsgiResponse:
    return replace(response, headers={**response.headers, "connection": "close"})


_AROUND = {
    "models.openai": replace_text('"object":"list"', '"object":"models"'),
    "models.anthropic": _without_field("has_more", "/v1/models"),
    "models.one": respond_when(lambda request: request.path.count("/") > 3, 404),
    "models.unknown": change_errors(lambda response: replace(response, status=500)),
    "models.codex": _without_field("models", "/v1/models"),
    "tokens.round_trip": replace_text("naïve", "naive", where="detokenize"),
    "transport.head": respond_when(lambda request: request.method == "HEAD", 500),
    "transport.keep_alive": Fault(change_response=_closed),
    "transport.zstd": respond_when(lambda request: "content-encoding" in request.headers, 415),
    "transport.gzip": respond_when(lambda request: "content-encoding" in request.headers, 415),
    "transport.big_body": respond_when(lambda request: len(request.body) > 1 << 20, 413),
    "transport.concurrent": replace_text("msg_[0-9a-f]+", "msg_same"),
    "transport.hang_up": Fault(ignore_disconnect=True),
    "transport.unknown_path": respond_when(lambda request: True, 200),
    "transport.health": respond_when(lambda request: True, 503),
}

FAULTS = {**_everywhere(), **_MESSAGES, **_RESPONSES, **_CHAT, **_AROUND}
