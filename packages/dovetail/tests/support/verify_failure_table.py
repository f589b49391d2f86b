"""For every black-box check a fault that it has to find."""

import re
from collections.abc import Callable
from dataclasses import replace

from verify_failures import (
    Asked,
    Fault,
    Json,
    Told,
    answer,
    changed,
    forgetting,
    frames,
    headed,
    refusing,
    spoiled_errors,
    swap,
    turned_away,
    twice,
    without,
)

_APIS = ("messages", "responses", "chat")
_PROMPT = {"messages": "input_tokens", "responses": "input_tokens", "chat": "prompt_tokens"}
_PAGE = "<html>no</html>"


def _count(field: str, number: Callable[[Asked, int], int]) -> Fault:
    def change(asked: Asked, value: Json) -> None:
        value["usage"][field] = number(asked, value["usage"][field])

    return changed(change)


def _blank_block(asked: Asked, value: Json) -> None:
    value["content"].insert(0, {"type": "text", "text": "\n\n"})


def _counted_twice(asked: Asked, value: Json) -> None:
    usage = value.get("usage", {})
    usage["input_tokens"] = usage.get("input_tokens", 0) + usage.get("cache_read_input_tokens", 0)


def _uncached_line(asked: Asked, value: Json) -> None:
    if b".z9;" in asked.body:
        value["usage"]["cache_read_input_tokens"] = 0


def _one_id_each(found: list[str]) -> list[str]:
    return [re.sub(r'"id":"chatcmpl-', f'"id":"{at}-', frame) for at, frame in enumerate(found)]


def _without_field(name: str, where: str) -> Fault:
    def change(asked: Asked, value: Json) -> None:
        value.pop(name, None)

    return changed(change, where)


def _everywhere() -> dict[str, Fault]:
    """Faults of the checks that every API has."""
    found: dict[str, Fault] = {}
    for api in _APIS:
        prompt = _PROMPT[api]
        found |= {
            f"{api}.stream.same_as_whole": swap('"(text|content)":"', r'"\1":"~', streamed=True),
            f"{api}.stream.closes": Fault(linger=True),
            f"{api}.stream.headers": headed("content-type", "text/plain"),
            f"{api}.stream.characters": swap("🦊", "\ufffd", streamed=True),
            f"{api}.ids.answer": swap("(msg_|resp_|chatcmpl-)[0-9a-f]+", r"\1same"),
            f"{api}.ids.call": swap("(toolu_|call_)[0-9a-f]{20,}", r"\1same"),
            f"{api}.call.dispatch": twice("event: tool_call_dispatch"),
            f"{api}.structured": swap(r'"\{\\"title', r'"Sure: {\\"title'),
            f"{api}.usage.same": swap(f'"{prompt}":[0-9]+', f'"{prompt}":1', streamed=True),
            f"{api}.usage.output": swap('"(output|completion)_tokens":[0-9]+', r'"\1_tokens":0'),
            f"{api}.usage.parts": _count(prompt, lambda asked, n: n + (b"text" in asked.body)),
            f"{api}.usage.metadata": _count(prompt, lambda asked, n: len(asked.body)),
            f"{api}.cache.repeated": swap(
                '"(cached_tokens|cache_read_input_tokens)":[0-9]+', r'"\1":0'
            ),
            f"{api}.errors.bad_json": spoiled_errors(lambda told: replace(told, status=500)),
            f"{api}.errors.missing": spoiled_errors(lambda told: answer(400, '{"detail":"no"}')),
            f"{api}.errors.wrong_type": spoiled_errors(
                lambda told: answer(400, _PAGE, "text/html")
            ),
            f"{api}.errors.model": turned_away(lambda asked: True, 200, '{"model":"another"}'),
            f"{api}.errors.method": turned_away(lambda asked: asked.method == "PUT", 200),
        }
    return found


_MESSAGES = {
    "messages.whole.shape": swap('"type":"message"', '"type":"note"', streamed=False),
    "messages.stream.event_lines": swap("event: [a-z_]+\n", ""),
    "messages.stream.order": without("content_block_stop"),
    "messages.stream.kinds": swap('"thinking_delta"', '"text_delta"'),
    "messages.model.echo": swap('"model":"[^"]+"', '"model":"another"'),
    "messages.stream.signature": twice("signature_delta"),
    "messages.stream.no_blank_text": changed(_blank_block),
    "messages.stream.end": frames(lambda found: [*found, "data: [DONE]"]),
    "messages.stream.start_usage": swap('"input_tokens":[0-9]+', '"input_tokens":3', streamed=True),
    "messages.limit": swap('"stop_reason":"max_tokens"', '"stop_reason":"end_turn"'),
    "messages.stop": forgetting("stop_sequences"),
    "messages.call.arguments": swap('"get_weather"', '"getWeather"'),
    "messages.call.end": swap('"stop_reason":"tool_use"', '"stop_reason":"end_turn"'),
    "messages.accepts.beta_query": turned_away(lambda asked: "beta=" in asked.path, 404),
    "messages.accepts.claude_code": refusing("context_management"),
    "messages.accepts.unknown": refusing("a_field_of_tomorrow"),
    "messages.accepts.system_inside": refusing('"role": "system"'),
    "messages.accepts.server_tools": refusing("web_search_20250305"),
    "messages.accepts.replay": refusing('"signature"'),
    "messages.accepts.thinking_modes": refusing('"disabled"'),
    "messages.accepts.keys": turned_away(lambda asked: "authorization" in asked.headers, 401),
    "messages.count_tokens.shape": swap('"input_tokens"', '"tokens"', where="count_tokens"),
    "messages.count_tokens.exact": swap("[0-9]+", "7", where="count_tokens"),
    "messages.cache.excluded": changed(_counted_twice, "/v1/messages"),
    "messages.cache.billing_line": changed(_uncached_line),
    "messages.errors.too_long": swap("prompt is too long", "maximum context length"),
}

_RESPONSES = {
    "responses.whole.shape": swap('"total_tokens":[0-9]+', '"total_tokens":1'),
    "responses.stream.order": without("response.completed"),
    "responses.stream.indices": swap('"output_index":0', '"output_index":null'),
    "responses.stream.usage": swap('"output_tokens":', '"out":', streamed=True),
    "responses.stream.event_lines": swap("event: response.completed", "event: done"),
    "responses.stream.sequence": swap('"sequence_number":[0-9]+', '"sequence_number":1'),
    "responses.stream.items_done": without("response.output_item.done"),
    "responses.stream.output": frames(
        lambda found: [
            f.replace("Orange", "Red") if "response.completed" in f else f for f in found
        ]
    ),
    "responses.stream.text": twice("response.output_text.delta"),
    "responses.call.deltas": without("response.function_call_arguments.delta"),
    "responses.ids.items": swap('"id":"(msg|rs|fc)_[0-9a-f]+"', '"id":"same"'),
    "responses.model.echo": headed("openai-model", "another"),
    "responses.reasoning.summary": swap('"summary":', '"sum":'),
    "responses.reasoning.replayable": swap(
        '"encrypted_content":"[^"]*"', '"encrypted_content":null'
    ),
    "responses.limit": swap('"status":"incomplete"', '"status":"completed"'),
    "responses.call.arguments": swap(r'"arguments":"\{', '"arguments":"{{', streamed=False),
    "responses.call.end": swap('"status":"completed"', '"status":"incomplete"'),
    "responses.accepts.codex": refusing("client_metadata"),
    "responses.accepts.string": refusing('"input": "'),
    "responses.accepts.items": refusing('"phase"'),
    "responses.accepts.replay": refusing('"encrypted_content": null'),
    "responses.accepts.tools": refusing('"tool_search"'),
    "responses.accepts.unknown": refusing("a_tool_of_tomorrow"),
    "responses.call.custom": swap('"type":"custom_tool_call"', '"type":"function_call"'),
    "responses.call.namespace": swap('"namespace":"weather"', '"namespace":null'),
    "responses.websocket": turned_away(lambda asked: asked.method == "GET", 404),
    "responses.previous": forgetting("previous_response_id"),
    "responses.errors.too_long": turned_away(lambda asked: True, 400, ""),
}

_CHAT = {
    "chat.whole.shape": swap('"total_tokens":[0-9]+', '"total_tokens":1'),
    "chat.stream.shape": without("[DONE]"),
    "chat.stream.usage": without('"choices":[]'),
    "chat.stream.ids": frames(_one_id_each),
    "chat.call.deltas": swap('"tool_calls":\\[\\{"index":0,', '"tool_calls":[{"index":1,'),
    "chat.limit": swap('"finish_reason":"length"', '"finish_reason":"stop"'),
    "chat.stop": forgetting("stop"),
    "chat.call.arguments": swap(r'"arguments":"\{', '"arguments":"{{', streamed=False),
    "chat.call.end": swap('"finish_reason":"tool_calls"', '"finish_reason":"stop"'),
    "chat.accepts.replay": refusing("reasoning_content"),
    "chat.accepts.null": refusing('"content": null'),
    "chat.accepts.developer": refusing('"developer"'),
    "chat.accepts.parts": refusing(r'"content": \['),
    "chat.accepts.unknown": refusing("a_field_of_tomorrow"),
    "chat.completion_limit": forgetting("max_completion_tokens"),
    "chat.choices": forgetting("n"),
    "chat.logprobs": forgetting("logprobs", "top_logprobs"),
    "chat.usage.tokenized": swap('"count":[0-9]+', '"count":7', where="tokenize"),
    "chat.errors.too_long": spoiled_errors(lambda told: replace(told, status=500)),
}


def _closed(asked: Asked, told: Told) -> Told:
    return replace(told, headers={**told.headers, "connection": "close"})


_AROUND = {
    "models.openai": swap('"object":"list"', '"object":"models"'),
    "models.anthropic": _without_field("has_more", "/v1/models"),
    "models.one": turned_away(lambda asked: asked.path.count("/") > 3, 404),
    "models.unknown": spoiled_errors(lambda told: replace(told, status=500)),
    "models.codex": _without_field("models", "/v1/models"),
    "tokens.round_trip": swap("naïve", "naive", where="detokenize"),
    "transport.head": turned_away(lambda asked: asked.method == "HEAD", 500),
    "transport.keep_alive": Fault(tell=_closed),
    "transport.zstd": turned_away(lambda asked: "content-encoding" in asked.headers, 415),
    "transport.gzip": turned_away(lambda asked: "content-encoding" in asked.headers, 415),
    "transport.big_body": turned_away(lambda asked: len(asked.body) > 1 << 20, 413),
    "transport.concurrent": swap("msg_[0-9a-f]+", "msg_same"),
    "transport.hang_up": Fault(deaf=True),
    "transport.unknown_path": turned_away(lambda asked: True, 200),
    "transport.health": turned_away(lambda asked: True, 503),
}

FAULTS = {**_everywhere(), **_MESSAGES, **_RESPONSES, **_CHAT, **_AROUND}
