"""A body and its stored history: the joined body decodes as if the client had sent all of it."""

import json
import time
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail_model import InvalidRequest
from dovetail_protocols import (
    COMPACT,
    RESPONSES,
    DecodeCache,
    complete_item,
    input_items,
    item_id,
    item_references,
    items_by_id,
    join_response,
    prepend_history,
    previous_response_id,
    resolve_references,
    split_response,
    with_default_model,
)


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", **fields}).encode()


def message(text: str, role: str = "user") -> dict[str, Any]:
    return {"type": "message", "role": role, "content": text}


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (body(input="x"), None),
        (body(previous_response_id=None), None),
        (body(previous_response_id=""), None),
        (body(previous_response_id=3), None),
        (body(previous_response_id="resp_1"), "resp_1"),
        (b'{"previous_response_id" : "a\\u0062"}', "ab"),
        (b'{"previous\\u005fresponse_id": "resp_1"}', "resp_1"),
        (body(input='"previous_response_id"'), None),
        (b'{"previous_response_id": "r", "input": "cut \\ud83d"}', "r"),
    ],
)
def test_previous_response_id_of_a_body(sent: bytes, expected: str | None) -> None:
    assert previous_response_id(sent) == expected


@pytest.mark.parametrize("sent", [b"", b"[1]", b'{"previous_response_id": "r"', b"\xff"])
def test_malformed_json_is_reported_or_left_to_the_codec(sent: bytes) -> None:
    try:
        assert previous_response_id(sent) is None
    except InvalidRequest:
        return
    with pytest.raises(InvalidRequest):
        RESPONSES.decode(sent, {})


@pytest.mark.parametrize(
    "sent",
    [
        "Go on.",
        [message("Go on.")],
        [],
        None,
        [{"type": "function_call_output", "call_id": "call_1", "output": "x"}, message("So?")],
    ],
)
def test_joined_body_equals_a_stateless_request(sent: Any) -> None:
    before: list[dict[str, Any]] = [
        message("Hi"),
        {"type": "reasoning", "summary": [], "content": [], "encrypted_content": "seal"},
        {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"},
    ]
    history = [json.dumps(item).encode() for item in before]
    more = {"previous_response_id": "r", "temperature": 0.5, "tools": [], "instructions": "Be."}
    joined = RESPONSES.decode(prepend_history(body(input=sent, **more), history), {})
    own = [message(sent)] if isinstance(sent, str) else sent or []
    whole = RESPONSES.decode(body(input=[*before, *own], **more), {})
    assert msgspec.structs.replace(joined, echo=None) == msgspec.structs.replace(whole, echo=None)
    assert msgspec.json.decode(joined.echo.fields)["previous_response_id"] == "r"  # type: ignore[attr-defined]


def test_invalid_input_is_rejected() -> None:
    with pytest.raises(InvalidRequest) as refused:
        RESPONSES.decode(prepend_history(body(input=3, previous_response_id="r"), [b"{}"]), {})
    assert refused.value.param == "input"


def test_each_body_of_a_conversation_starts_with_the_previous_one() -> None:
    """Therefore the cache compares the known part and decodes only the new part."""
    memory, history = DecodeCache(), list[bytes]()
    last: Any = None
    for turn in range(40):
        text = f"{turn} " * 200
        sent = body(input=text, previous_response_id=f"r{turn}", stream=bool(turn % 2))
        request = RESPONSES.decode(prepend_history(sent, history), {}, memory)
        history += [input_items(sent), json.dumps(message("Well.", "assistant")).encode()]
        if last is not None:
            same = zip(last.turns, request.turns, strict=False)
            assert all(one is two for one, two in same)
        last = request


ODD = [
    *(r'"\ud83d"', r'"\ude00"', r'"\ud83d\u0041"', r'"\ud83dx"', '"\xff"', '"\\q"', '"\t"'),
    *("nope", "1e999", '{"a":}', "[[", "01", "null", "3", '"s"', "[" * 5000 + "]" * 5000),
    '{"type":"item_reference","id":"\\ude00"}',
    '{"type":"item_reference","id":3}',
    '{"type":"item_reference"}',
    '{"role":"user","content":"\\ude00"}',
]
PLACES = [
    '{"model":"m","previous_response_id":"r","input":[%s,{"type":"item_reference","id":"x"}]}',
    '{"model":"m","previous_response_id":"r","input":%s}',
    '{"model":"m","previous_response_id":%s,"input":"x"}',
    '{"model":%s,"previous_response_id":"r","input":"x"}',
    '{"input":[%s],"model":"m","previous_response_id":"r","x":"item_reference"}',
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("odd", ODD, ids=range(len(ODD)))
def test_joining_handles_any_body(odd: str, place: str) -> None:
    """Every body is decoded, or rejected as a client error."""
    sent, done = (place % odd).encode("latin-1"), list[Any]()
    for act in (
        previous_response_id,
        item_references,
        input_items,
        lambda sent: with_default_model(sent, "m"),
        lambda sent: resolve_references(sent, {"x": b"{}"}),
        lambda sent: COMPACT.decode(sent, {}),
        lambda sent: RESPONSES.decode(prepend_history(sent, [b'{"role":"user"}']), {}),
    ):
        with suppress(InvalidRequest):
            done.append(act(sent))
            continue
        done.append(None)
    assert len(done) == 7


def test_item_references_are_replaced_by_the_items() -> None:
    named = {"type": "item_reference", "id": "msg_1"}
    sent = body(input=[message("a"), named, {"type": "item_reference", "id": 4}])
    assert item_references(sent) == ["msg_1"]
    assert item_references(body(input="item_reference")) == []
    stored = b'{"type":"message","id":"msg_1","role":"assistant","content":"b"},{"type":"x"}'
    found = items_by_id(stored)
    assert list(found) == ["msg_1"]
    items = json.loads(resolve_references(sent, found))["input"]
    assert [item.get("content") for item in items] == ["a", "b", None]


@given(st.text())
def test_text_is_one_user_message(text: str) -> None:
    sent = msgspec.json.encode({"model": "m", "input": text})
    items = json.loads(b"[%b]" % input_items(sent))
    assert items == [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    ]
    as_items = RESPONSES.decode(body(input=items), {})
    assert as_items.turns == RESPONSES.decode(sent, {}).turns


def test_response_is_split_and_joined() -> None:
    whole = {"id": "r", "output": [{"a": 1}, {"b": [2]}], "usage": {"x": 1}, "status": "completed"}
    head, output = split_response(json.dumps(whole).encode())
    assert "output" not in head
    assert json.loads(join_response(msgspec.json.encode(head), output)) == whole
    head, output = split_response(b'{"id":"r","output":[]}')
    assert json.loads(join_response(msgspec.json.encode(head), output)) == {
        "id": "r",
        "output": [],
    }


def test_default_model_is_added_if_none_is_named() -> None:
    assert json.loads(with_default_model(b'{"input":"x"}', "m")) == {"input": "x", "model": "m"}
    assert json.loads(with_default_model(b'{"model":null}', "m")) == {"model": "m"}
    assert with_default_model(body(input="x"), "other") == body(input="x")


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (
            {"role": "user", "content": "Hi"},
            {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "Hi"}],
                "id": "x",
            },
        ),
        (
            {"type": "message", "role": "assistant", "content": "Hi"},
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "Hi", "annotations": []}],
                "id": "x",
            },
        ),
        (
            {"type": "function_call_output", "call_id": "c", "output": "o"},
            {"type": "function_call_output", "call_id": "c", "output": "o", "id": "x"},
        ),
    ],
)
def test_items_are_listed_in_their_full_form(item: Any, expected: Any) -> None:
    assert complete_item(item, "x") == expected


def test_ids_have_the_style_of_the_api() -> None:
    assert item_id({"role": "user"}, "1") == "msg_1"
    assert item_id({"type": "function_call_output"}, "1") == "fco_1"
    assert item_id({"type": "strange"}, "1") == "item_1"


def test_long_ids_are_searched_quickly() -> None:
    """A search holds the interpreter lock: 8 MB once took 0.7 s."""
    body = b'{"input":[{"id":"%b","role":"user","content":"x"}]}' % (b"x" * 8_000_000)
    started = time.process_time()
    assert item_references(body) == []
    assert time.process_time() - started < 0.2
    assert item_references(b'{"input":[{\n "id" : "msg_1"\n}]}') == ["msg_1"]
