"""Answers in every API: whole and streamed, their ends, their ids, their calls."""

import json

from dovetail_verify.api_checks import ApiCheckSpec, build_api_checks
from dovetail_verify.black_box.samples import (
    QUESTION,
    is_truncated,
    request_tool_call,
    sample_multibyte_stream,
    sample_response,
    sample_stream,
    sample_tool_call,
)
from dovetail_verify.check import CheckFailed, NotApplicable, pluralize, require
from dovetail_verify.dialects import CHAT, RESPONSES, TOOL_NAME, Dialect, Json
from dovetail_verify.exchange import HttpExchange
from dovetail_verify.target import TargetServer

_MAX_CLOSE_SECONDS = 1.0  # seconds that a connection may stay open behind the last event
_FINAL_EVENTS = {
    "messages": ("message_stop",),
    "responses": ("response.completed", "response.incomplete"),
    "chat": ("[DONE]",),
}
_STOP_REASONS = {"messages": ("stop_sequence",), "chat": ("stop",)}
_TOOL_CALL_REASONS = {"messages": "tool_use", "responses": "completed", "chat": "tool_calls"}


async def _stream_matches_body(target: TargetServer, dialect: Dialect) -> str:
    first = dialect.text(await sample_response(target, dialect))
    again = await target.post(dialect.path, dialect.body(target.model, [QUESTION]))
    if dialect.text(again) != first:
        raise NotApplicable("two whole answers at temperature 0 differ: nothing to compare with")
    streamed = dialect.text(await sample_stream(target, dialect))
    require(streamed == first, f"streamed {streamed!r}, whole {first!r}")
    return f"{len(first)} characters, the same both ways"


async def _stream_closes(target: TargetServer, dialect: Dialect) -> str:
    open_for = _seconds_open_after_end(await sample_stream(target, dialect), dialect)
    if open_for > _MAX_CLOSE_SECONDS:  # once may be a busy machine
        body = dialect.with_streaming(dialect.body(target.model, [QUESTION]))
        again = _seconds_open_after_end(
            (await target.post(dialect.path, body)).require_ok(), dialect
        )
        open_for = min(open_for, again)
    require(
        open_for <= _MAX_CLOSE_SECONDS, f"the connection stayed open for {open_for:.1f} s, twice"
    )
    return "closed at once"


def _seconds_open_after_end(exchange: HttpExchange, dialect: Dialect) -> float:
    last = [
        f for f in exchange.frames if f.type in _FINAL_EVENTS[dialect.api] or f.data == "[DONE]"
    ]
    if not last:
        raise NotApplicable(f"the stream has no {_FINAL_EVENTS[dialect.api][0]} to look behind")
    return exchange.total_seconds - last[-1].elapsed_seconds


async def _stream_headers(target: TargetServer, dialect: Dialect) -> str:
    exchange = await sample_stream(target, dialect)
    kind = exchange.headers.get("content-type", "")
    require(kind.startswith("text/event-stream"), f"content-type is {kind!r}", received=kind)
    require(exchange.frames, "the body holds no event")
    return kind


async def _multibyte_characters(target: TargetServer, dialect: Dialect) -> str:
    exchange = await sample_multibyte_stream(target, dialect)
    _require_valid_utf8(exchange)
    broken = [f for f in exchange.frames if "\ufffd" in f.data or "\\ufffd" in f.data.lower()]
    if not broken:
        return f"{len(exchange.frames)} events, no broken character"
    body = dict(exchange.request.body)
    for name in ("stream", "stream_options"):
        body.pop(name, None)
    plain = await target.post(dialect.path, body)
    if "\ufffd" in json.dumps(plain.require_ok().json, ensure_ascii=False):
        raise NotApplicable("the model itself wrote bytes that are no characters")
    raise CheckFailed("the stream has U+FFFD where the whole answer has none")


def _require_valid_utf8(exchange: HttpExchange) -> None:
    try:
        exchange.body.decode()
    except UnicodeDecodeError as error:
        raise CheckFailed(f"the stream is not UTF-8 at byte {error.start}") from None


async def _max_tokens(target: TargetServer, dialect: Dialect) -> str:
    limit = 16  # the least that OpenAI's own API accepts
    body = dialect.body(target.model, ["Count from one to one hundred in words."], max_tokens=limit)
    exchange = (await target.post(dialect.path, body)).require_ok()
    used = dialect.usage(exchange)
    require(
        used.output_tokens <= limit, f"{used.output_tokens} output tokens, and the limit is {limit}"
    )
    end = dialect.finish_reason(exchange)
    if used.output_tokens < limit and not is_truncated(dialect, exchange):
        raise NotApplicable(f"the model ended by itself after {used.output_tokens} tokens")
    require(is_truncated(dialect, exchange), f"ended by the limit, and says {end!r}")
    if dialect.api == "responses":
        status = exchange.json.get("status")
        require(status == "incomplete", f"ended by the limit, and its status is {status!r}")
    return f"{used.output_tokens} tokens, {end}"


async def _stop_sequence(target: TargetServer, dialect: Dialect) -> str:
    text = dialect.text(await sample_response(target, dialect))
    words = [word for word in text.split()[1:] if word.isascii() and len(word) > 2]
    if not words:
        raise NotApplicable("the answer has no word to stop at")
    word = words[0]
    body = dialect.body(target.model, [QUESTION])
    body["stop_sequences" if dialect.api == "messages" else "stop"] = [word]
    exchange = (await target.post(dialect.path, body)).require_ok()
    after = dialect.text(exchange)
    require(word not in after, f"the answer contains the stop sequence {word!r}")
    if is_truncated(dialect, exchange) or (dialect.api == "messages" and len(after) >= len(text)):
        raise NotApplicable("the answer did not come to the stop sequence this time")
    end = dialect.finish_reason(exchange)
    require(end in _STOP_REASONS[dialect.api], f"stopped at {word!r}, and says {end!r}")
    return f"stopped before {word!r}, {end}"


async def _response_ids(target: TargetServer, dialect: Dialect) -> str:
    ids = [dialect.response_id(await sample_response(target, dialect))]
    ids.append(dialect.response_id(await sample_stream(target, dialect)))
    more = await target.post(dialect.path, dialect.body(target.model, [QUESTION]))
    ids.append(dialect.response_id(more))
    require(all(id not in ("", "None") for id in ids), "an answer without an id")
    require(len(set(ids)) == len(ids), f"an id came twice: {', '.join(ids)}")
    return f"{len(ids)} answers, {len(ids)} ids"


async def _call_ids(target: TargetServer, dialect: Dialect) -> str:
    first = dialect.tool_calls(await sample_tool_call(target, dialect))
    second = dialect.tool_calls((await request_tool_call(target, dialect)).require_ok())
    if not second:
        raise NotApplicable("the model did not call the tool a second time")
    ids = [call.id for call in (*first, *second)]
    require(all(ids), "a call without an id")
    require(len(set(ids)) == len(ids), f"an id came twice: {', '.join(ids)}")
    return ", ".join(ids)


async def _call_arguments(target: TargetServer, dialect: Dialect) -> str:
    for streamed in (True, False):
        form = "streamed" if streamed else "whole"
        for call in dialect.tool_calls(await sample_tool_call(target, dialect, streamed=streamed)):
            text = call.arguments
            require(isinstance(text, str), f"{form}: arguments are a {type(text).__name__}")
            require(_is_object(text), f"{form}: arguments are no JSON object: {text!r}")
            require(
                call.name == TOOL_NAME, f"{form}: the call names {call.name!r}, not {TOOL_NAME!r}"
            )
    return text


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


async def _call_finish_reason(target: TargetServer, dialect: Dialect) -> str:
    wanted = _TOOL_CALL_REASONS[dialect.api]
    for streamed in (True, False):
        end = dialect.finish_reason(await sample_tool_call(target, dialect, streamed=streamed))
        form = "streamed" if streamed else "whole"
        require(end == wanted, f"{form}: the answer makes a call, and says {end!r}, not {wanted!r}")
    return wanted


async def _dispatch(target: TargetServer, dialect: Dialect) -> str:
    await sample_tool_call(target, dialect)
    sent = target.exchanges[-1].request
    headers = {"x-dovetail-dispatch": "tools"}
    exchange = (await target.post(dialect.path, sent.body, headers)).require_ok()
    events = [f.json for f in exchange.frames if f.event == "tool_call_dispatch"]
    if not events:
        raise NotApplicable("the server offers no tool_call_dispatch events")
    calls = dialect.tool_calls(exchange)
    found = [(t["tool_call"]["id"], t["tool_call"]["function"]["arguments"]) for t in events]
    require([id for id, _ in found] == [call.id for call in calls], "not one event for every call")
    for call, (_, arguments) in zip(calls, found, strict=True):
        same = json.loads(arguments) == json.loads(call.arguments)
        require(same, f"the event has {arguments!r}, the call {call.arguments!r}")
    if dialect is CHAT:
        kinds = [frame.event for frame in exchange.frames]
        behind = kinds[kinds.index("tool_call_dispatch") :]
        require(len(behind) > 1, "the event came after the end of the stream")
    return f"{pluralize(len(events), 'event')}, with the whole call"


def _clauses_by_api(messages: str, responses: str, chat: str) -> dict[str, str]:
    return {"messages": messages, "responses": responses, "chat": chat}


CHECKS = build_api_checks(
    (
        ApiCheckSpec(
            "stream.same_as_whole",
            "R1",
            "a stream and a whole answer say the same",
            "A client that falls back from streaming gets another answer than it saw.",
            _stream_matches_body,
        ),
        ApiCheckSpec(
            "stream.closes",
            _clauses_by_api("CC-11", "CX-22", "WB-4"),
            "the body ends with the last event",
            "The next turn starts only when the body has ended: every turn gets slower.",
            _stream_closes,
        ),
        ApiCheckSpec(
            "stream.headers",
            "WB-4",
            "a stream is text/event-stream",
            "SDKs do not recognise the stream and give up.",
            _stream_headers,
        ),
        ApiCheckSpec(
            "stream.characters",
            "R11",
            "no character is broken at the seam of two tokens",
            "Emoji, Chinese and Hindi turn to � in files that the agent writes.",
            _multibyte_characters,
        ),
        ApiCheckSpec(
            "limit",
            _clauses_by_api("CC-14", "TK-10", "AG-1"),
            "the token limit is kept, and named as the reason of the end",
            "A cut answer looks finished: the agent works on with half a file.",
            _max_tokens,
        ),
        ApiCheckSpec(
            "stop",
            {"messages": "TK-9", "chat": "TK-9"},
            "a stop sequence ends the answer and is not in it",
            "Tools that cut answers by stop sequences read past them.",
            _stop_sequence,
        ),
        ApiCheckSpec(
            "ids.answer",
            _clauses_by_api("CC-6", "CX-8", "AG-8"),
            "every answer has an id of its own",
            "Two turns with one id are merged: a turn disappears from the history.",
            _response_ids,
        ),
        ApiCheckSpec(
            "ids.call",
            _clauses_by_api("CC-7", "CX-8", "AG-9"),
            "every tool call has an id of its own, over several answers",
            "Repeated ids delete the later call or pair it with an old result.",
            _call_ids,
        ),
        ApiCheckSpec(
            "call.arguments",
            _clauses_by_api("CC-13", "CX-7", "AG-3"),
            "arguments are one JSON object, streamed and whole",
            "The tool cannot be run: the client sees invalid input.",
            _call_arguments,
        ),
        ApiCheckSpec(
            "call.end",
            _clauses_by_api("CC-14", "CX-1", "AG-1"),
            "an answer with a call ends as one",
            "Agents that go by the reason of the end stop, and never run the tool.",
            _call_finish_reason,
        ),
        ApiCheckSpec(
            "call.dispatch",
            _clauses_by_api("CC-23", "AG-12", "AG-12"),
            "tool_call_dispatch tells each complete call once",
            "Runners that start tools by these events start the wrong thing.",
            _dispatch,
        ),
    )
)


_SCHEMA: Json = {
    "type": "object",
    "properties": {"title": {"type": "string"}},
    "required": ["title"],
    "additionalProperties": False,
}
_TITLE_PROMPT = (
    "Write a title for a conversation about the weather. Answer in JSON with the key title."
)


async def _structured_output(target: TargetServer, dialect: Dialect) -> str:
    body = {
        **dialect.body(target.model, [_TITLE_PROMPT], max_tokens=512),
        **_schema_format(dialect),
    }
    exchange = (await target.post(dialect.path, body)).require_ok()
    if is_truncated(dialect, exchange):
        raise NotApplicable("the answer was cut by the limit")
    text = dialect.text(exchange)
    require(_matches_schema(text), f"the answer is not JSON of the schema: {text!r}")
    return text


def _matches_schema(text: str) -> bool:
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return isinstance(value, dict) and isinstance(value.get("title"), str) and len(value) == 1


def _schema_format(dialect: Dialect) -> Json:
    schema = {"name": "title", "schema": _SCHEMA, "strict": True}
    if dialect is RESPONSES:
        return {"text": {"format": {"type": "json_schema", **schema}}}
    if dialect is CHAT:
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    return {"output_config": {"format": {"type": "json_schema", "schema": _SCHEMA}}}


STRUCTURED_CHECKS = build_api_checks(
    (
        ApiCheckSpec(
            "structured",
            {"messages": "CC-28", "responses": "CX-24", "chat": "AG-15"},
            "an answer that is to follow a schema follows it",
            "Titles, plans and verdicts cannot be read, and are asked for again and again.",
            _structured_output,
        ),
    )
)
