"""Answers in every API: whole and streamed, their ends, their ids, their calls."""

import json

from dovetail_verify.api_checks import Row, checks_of
from dovetail_verify.black_box.samples import (
    QUESTION,
    ask_for_call,
    called,
    strange_letters,
    stream,
    was_cut,
    whole,
)
from dovetail_verify.check import Failed, NotApplicable, require, several
from dovetail_verify.dialects import CHAT, NAME, Dialect
from dovetail_verify.exchange import Exchange
from dovetail_verify.target import Stage

_CLOSING = 1.0  # seconds that a connection may stay open behind the last event
_LAST = {
    "messages": ("message_stop",),
    "responses": ("response.completed", "response.incomplete"),
    "chat": ("[DONE]",),
}
_STOPPED = {"messages": ("stop_sequence",), "chat": ("stop",)}
_CALLED = {"messages": "tool_use", "responses": "completed", "chat": "tool_calls"}


async def _same_as_whole(stage: Stage, dialect: Dialect) -> str:
    first = dialect.text(await whole(stage, dialect))
    again = await stage.post(dialect.path, dialect.body(stage.model, [QUESTION]))
    if dialect.text(again) != first:
        raise NotApplicable("two whole answers at temperature 0 differ: nothing to compare with")
    streamed = dialect.text(await stream(stage, dialect))
    require(streamed == first, f"streamed {streamed!r}, whole {first!r}")
    return f"{len(first)} characters, the same both ways"


async def _closes(stage: Stage, dialect: Dialect) -> str:
    open_for = _open_behind_end(await stream(stage, dialect), dialect)
    if open_for > _CLOSING:  # once may be a busy machine
        body = dialect.streamed(dialect.body(stage.model, [QUESTION]))
        again = _open_behind_end((await stage.post(dialect.path, body)).ok(), dialect)
        open_for = min(open_for, again)
    require(open_for <= _CLOSING, f"the connection stayed open for {open_for:.1f} s, twice")
    return "closed at once"


def _open_behind_end(exchange: Exchange, dialect: Dialect) -> float:
    last = [f for f in exchange.frames if f.type in _LAST[dialect.api] or f.data == "[DONE]"]
    if not last:
        raise NotApplicable(f"the stream has no {_LAST[dialect.api][0]} to look behind")
    return exchange.ended - last[-1].at


async def _headers(stage: Stage, dialect: Dialect) -> str:
    exchange = await stream(stage, dialect)
    kind = exchange.headers.get("content-type", "")
    require(kind.startswith("text/event-stream"), f"content-type is {kind!r}", came=kind)
    require(exchange.frames, "the body holds no event")
    return kind


async def _split_characters(stage: Stage, dialect: Dialect) -> str:
    exchange = await strange_letters(stage, dialect)
    _valid_utf8(exchange)
    broken = [f for f in exchange.frames if "\ufffd" in f.data or "\\ufffd" in f.data.lower()]
    if not broken:
        return f"{len(exchange.frames)} events, no broken character"
    body = dict(exchange.sent.body)
    for name in ("stream", "stream_options"):
        body.pop(name, None)
    plain = await stage.post(dialect.path, body)
    if "\ufffd" in json.dumps(plain.ok().json, ensure_ascii=False):
        raise NotApplicable("the model itself wrote bytes that are no characters")
    raise Failed("the stream has U+FFFD where the whole answer has none")


def _valid_utf8(exchange: Exchange) -> None:
    try:
        exchange.body.decode()
    except UnicodeDecodeError as fault:
        raise Failed(f"the stream is not UTF-8 at byte {fault.start}") from None


async def _limit(stage: Stage, dialect: Dialect) -> str:
    limit = 16  # the least that OpenAI's own API accepts
    body = dialect.body(stage.model, ["Count from one to one hundred in words."], limit=limit)
    exchange = (await stage.post(dialect.path, body)).ok()
    used = dialect.used(exchange)
    require(used.output <= limit, f"{used.output} output tokens, and the limit is {limit}")
    end = dialect.end(exchange)
    if used.output < limit and not was_cut(dialect, exchange):
        raise NotApplicable(f"the model ended by itself after {used.output} tokens")
    require(was_cut(dialect, exchange), f"ended by the limit, and says {end!r}")
    if dialect.api == "responses":
        status = exchange.json.get("status")
        require(status == "incomplete", f"ended by the limit, and its status is {status!r}")
    return f"{used.output} tokens, {end}"


async def _stop(stage: Stage, dialect: Dialect) -> str:
    text = dialect.text(await whole(stage, dialect))
    words = [word for word in text.split()[1:] if word.isascii() and len(word) > 2]
    if not words:
        raise NotApplicable("the answer has no word to stop at")
    word = words[0]
    body = dialect.body(stage.model, [QUESTION])
    body["stop_sequences" if dialect.api == "messages" else "stop"] = [word]
    exchange = (await stage.post(dialect.path, body)).ok()
    after = dialect.text(exchange)
    require(word not in after, f"the answer contains the stop sequence {word!r}")
    if was_cut(dialect, exchange) or (dialect.api == "messages" and len(after) >= len(text)):
        raise NotApplicable("the answer did not come to the stop sequence this time")
    end = dialect.end(exchange)
    require(end in _STOPPED[dialect.api], f"stopped at {word!r}, and says {end!r}")
    return f"stopped before {word!r}, {end}"


async def _answer_ids(stage: Stage, dialect: Dialect) -> str:
    ids = [dialect.answer_id(await whole(stage, dialect))]
    ids.append(dialect.answer_id(await stream(stage, dialect)))
    more = await stage.post(dialect.path, dialect.body(stage.model, [QUESTION]))
    ids.append(dialect.answer_id(more))
    require(all(id not in ("", "None") for id in ids), "an answer without an id")
    require(len(set(ids)) == len(ids), f"an id came twice: {', '.join(ids)}")
    return f"{len(ids)} answers, {len(ids)} ids"


async def _call_ids(stage: Stage, dialect: Dialect) -> str:
    first = dialect.calls(await called(stage, dialect))
    second = dialect.calls((await ask_for_call(stage, dialect)).ok())
    if not second:
        raise NotApplicable("the model did not call the tool a second time")
    ids = [call.id for call in (*first, *second)]
    require(all(ids), "a call without an id")
    require(len(set(ids)) == len(ids), f"an id came twice: {', '.join(ids)}")
    return ", ".join(ids)


async def _call_arguments(stage: Stage, dialect: Dialect) -> str:
    for streamed in (True, False):
        form = "streamed" if streamed else "whole"
        for call in dialect.calls(await called(stage, dialect, streamed=streamed)):
            text = call.arguments
            require(isinstance(text, str), f"{form}: arguments are a {type(text).__name__}")
            require(_is_object(text), f"{form}: arguments are no JSON object: {text!r}")
            require(call.name == NAME, f"{form}: the call names {call.name!r}, not {NAME!r}")
    return text


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


async def _call_end(stage: Stage, dialect: Dialect) -> str:
    wanted = _CALLED[dialect.api]
    for streamed in (True, False):
        end = dialect.end(await called(stage, dialect, streamed=streamed))
        form = "streamed" if streamed else "whole"
        require(end == wanted, f"{form}: the answer makes a call, and says {end!r}, not {wanted!r}")
    return wanted


async def _dispatch(stage: Stage, dialect: Dialect) -> str:
    await called(stage, dialect)
    sent = stage.exchanges[-1].sent
    headers = {"x-dovetail-dispatch": "tools"}
    exchange = (await stage.post(dialect.path, sent.body, headers)).ok()
    told = [f.json for f in exchange.frames if f.event == "tool_call_dispatch"]
    if not told:
        raise NotApplicable("the server offers no tool_call_dispatch events")
    calls = dialect.calls(exchange)
    found = [(t["tool_call"]["id"], t["tool_call"]["function"]["arguments"]) for t in told]
    require([id for id, _ in found] == [call.id for call in calls], "not one event for every call")
    for call, (_, arguments) in zip(calls, found, strict=True):
        same = json.loads(arguments) == json.loads(call.arguments)
        require(same, f"the event has {arguments!r}, the call {call.arguments!r}")
    if dialect is CHAT:
        kinds = [frame.event for frame in exchange.frames]
        behind = kinds[kinds.index("tool_call_dispatch") :]
        require(len(behind) > 1, "the event came after the end of the stream")
    return f"{several(len(told), 'event')}, with the whole call"


def _each(messages: str, responses: str, chat: str) -> dict[str, str]:
    return {"messages": messages, "responses": responses, "chat": chat}


CHECKS = checks_of(
    (
        Row(
            "stream.same_as_whole",
            "R1",
            "a stream and a whole answer say the same",
            "A client that falls back from streaming gets another answer than it saw.",
            _same_as_whole,
        ),
        Row(
            "stream.closes",
            _each("CC-11", "CX-22", "WB-4"),
            "the body ends with the last event",
            "The next turn starts only when the body has ended: every turn gets slower.",
            _closes,
        ),
        Row(
            "stream.headers",
            "WB-4",
            "a stream is text/event-stream",
            "SDKs do not recognise the stream and give up.",
            _headers,
        ),
        Row(
            "stream.characters",
            "R11",
            "no character is broken at the seam of two tokens",
            "Emoji, Chinese and Hindi turn to � in files that the agent writes.",
            _split_characters,
        ),
        Row(
            "limit",
            _each("CC-14", "TK-10", "AG-1"),
            "the token limit is kept, and named as the reason of the end",
            "A cut answer looks finished: the agent works on with half a file.",
            _limit,
        ),
        Row(
            "stop",
            {"messages": "TK-9", "chat": "TK-9"},
            "a stop sequence ends the answer and is not in it",
            "Tools that cut answers by stop sequences read past them.",
            _stop,
        ),
        Row(
            "ids.answer",
            _each("CC-6", "CX-8", "AG-8"),
            "every answer has an id of its own",
            "Two turns with one id are merged: a turn disappears from the history.",
            _answer_ids,
        ),
        Row(
            "ids.call",
            _each("CC-7", "CX-8", "AG-9"),
            "every tool call has an id of its own, over several answers",
            "Repeated ids delete the later call or pair it with an old result.",
            _call_ids,
        ),
        Row(
            "call.arguments",
            _each("CC-13", "CX-7", "AG-3"),
            "arguments are one JSON object, streamed and whole",
            "The tool cannot be run: the client sees invalid input.",
            _call_arguments,
        ),
        Row(
            "call.end",
            _each("CC-14", "CX-1", "AG-1"),
            "an answer with a call ends as one",
            "Agents that go by the reason of the end stop, and never run the tool.",
            _call_end,
        ),
        Row(
            "call.dispatch",
            _each("CC-23", "AG-12", "AG-12"),
            "tool_call_dispatch tells each complete call once",
            "Runners that start tools by these events start the wrong thing.",
            _dispatch,
        ),
    )
)
