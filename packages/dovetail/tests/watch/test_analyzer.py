"""Parts of watch mode: recordings, reference models, sessions, and the terminal table."""

import asyncio
import errno
import io
import json
import os
import stat
from pathlib import Path

import msgspec
import pytest
from http_fixture import run
from rich.console import Console
from server_process import qwen_folder
from watch_fixture import endpoint, listening, plain_server

from dovetail.net.exchange import Message
from dovetail.net.http_client import Endpoint
from dovetail.watch.analysis import ExchangeAnalysis, PromptPrefix, TrafficFinding, TrafficSummary
from dovetail.watch.exchange import (
    CapturedExchange,
    ExchangeRecorder,
    RecordingError,
    find_codec,
    read_recording,
    write_private_file,
)
from dovetail.watch.fix import FixApp, forward_request
from dovetail.watch.observer import TrafficObserver
from dovetail.watch.reference_model import ListedModel, ReferenceModels, build_fallback
from dovetail.watch.report import (
    LineDisplay,
    LiveDisplay,
    create_display,
    format_exchange,
    format_summary,
    to_summary_json,
)
from dovetail.watch.sessions import SessionTracker, build_past_exchange
from dovetail.watch.watcher import Watcher, WatchOptions
from dovetail_model import Identity, Request, TextBlock, Turn

EXCHANGE = CapturedExchange(
    number=1,
    method="POST",
    target="/v1/messages?beta=true",
    began=1.5,
    request_received=0.1,
    ended=2.0,
    status=200,
    request_headers={"a": "b"},
    response_headers={"content-type": "text/event-stream; charset=utf-8"},
    request='{"grüße": 1}'.encode(),
    response=b"data: \xff\xfe\n\n",
    marks=((0.2, 3), (0.3, 10)),
)


class TestRecordings:
    def test_round_trip_is_unchanged(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jsonl"
        path.touch(0o644)
        for _ in range(2):  # a second run appends to the same file
            recorder = ExchangeRecorder(path, "http://a")
            recorder.write(EXCHANGE)
            recorder.close()
        assert list(read_recording(path)) == [EXCHANGE, EXCHANGE]
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert "grüße" in path.read_text()  # text is readable, other bytes are in base64

    def test_truncated_last_line_is_skipped(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jsonl"
        recorder = ExchangeRecorder(path, "http://a")
        recorder.write(EXCHANGE)
        recorder.write(EXCHANGE)
        recorder.close()
        path.write_bytes(path.read_bytes()[:-20])
        assert list(read_recording(path)) == [EXCHANGE]

    @pytest.mark.parametrize("text", ["", "{}\n", "nonsense\n", '{"dovetail_recording": 9}\n'])
    def test_other_files_are_rejected(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "a").write_text(text)
        with pytest.raises(RecordingError, match="is not a recording"):
            list(read_recording(tmp_path / "a"))

    def test_invalid_line_is_reported(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_text('{"dovetail_recording": 1}\n{"number": 1}\n')
        with pytest.raises(RecordingError, match="line 2"):
            list(read_recording(tmp_path / "a"))


@pytest.mark.parametrize(
    ("method", "target", "name"),
    [
        ("POST", "/v1/messages?beta=true", "messages"),
        ("POST", "/base/v1/chat/completions", "chat"),
        ("POST", "/v1/responses/", "responses"),
        ("POST", "/v1/messages/count_tokens", None),
        ("GET", "/v1/responses", None),
        ("POST", "/v1/completions", None),
    ],
)
def test_which_requests_are_generation_requests(method: str, target: str, name: str | None) -> None:
    codec = find_codec(method, target)
    assert (codec.name if codec is not None else None) == name


class TestLenses:
    @pytest.mark.long
    def test_folder_reported_by_the_server_is_used(self, tmp_path: Path) -> None:
        folder = qwen_folder(tmp_path / "model")
        lenses = ReferenceModels(listed=(ListedModel("some", str(folder)),))
        assert lenses.get("some").has_tokenizer
        assert lenses.get("some") is lenses.get("some")
        assert lenses.get("claude-alias").origin == str(folder)  # it serves only this model

    def test_hub_cache_is_used(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        qwen_folder(tmp_path / "models--some--model" / "snapshots" / "1")
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
        assert ReferenceModels().get("some/model").has_tokenizer
        assert not ReferenceModels().get("some/other").has_tokenizer

    def test_folder_without_a_model_gives_a_warning(self, tmp_path: Path) -> None:
        lenses = ReferenceModels(listed=(ListedModel("some", str(tmp_path)),))
        assert not lenses.get("some").has_tokenizer
        assert lenses.warnings

    def test_fallback_detects_the_family_by_name(self) -> None:
        assert build_fallback("Qwen/Qwen3-Coder-30B").tool_parser == "qwen3_coder"
        assert build_fallback("who-knows").tool_parser is None

    @pytest.mark.long
    def test_any_model_name_is_accepted(self) -> None:
        lenses = ReferenceModels()
        names = ["~nobody-there/x", "x" * 5000, "a\0b", *(f"m{n}" for n in range(1000))]
        assert len({id(lenses.get(name)) for name in names}) == 1
        assert len(lenses._found) < 300


def test_sessions_are_found_by_name_and_by_turns() -> None:
    sessions = SessionTracker()
    turns = tuple(Turn("user", (TextBlock(text),)) for text in "abcd")
    first = sessions.get(Request("m", turns[:1]))
    assert sessions.get(Request("m", turns[:3])) is first
    assert sessions.get(Request("m", turns[:1])) is not first  # the same text, another session
    assert sessions.get(Request("m", turns[1:])) is not first
    named = sessions.get(Request("m", turns, identity=Identity(session="x" * 36)))
    assert (named.label, named.request_count) == ("xxxxxxxx", 1)


ANALYSIS = ExchangeAnalysis(
    number=1,
    session="abc",
    place=1,
    api="chat",
    model="m",
    status=200,
    began=0.0,
    duration=1.0,
    streamed=True,
    served=PromptPrefix(1000, 10),
    exact=PromptPrefix(990, 900),
    needless=900,
    broke=TrafficFinding("billing", "line 1: [bold]a[/bold] became b"),
)


def in_session(name: str) -> Request:
    return Request("m", identity=Identity(session=name))


def test_labels_of_similar_session_names_are_unique() -> None:
    """Codex's ids begin with a timestamp: those of one minute have a common prefix."""
    sessions = SessionTracker()
    ids = [f"019a7c3e-{number:04x}-7000-8000-000000000000" for number in range(20)]
    labels = [sessions.get(in_session(id)).label for id in ids]
    assert len(set(labels)) == len(ids)
    assert labels[0] == ids[0][:8]
    assert sessions.get(in_session("\x1b[2J")).label == "?[2J"


def test_session_memory_is_bounded() -> None:
    sessions = SessionTracker(max_body_bytes=1000)
    for number in range(100):
        session = sessions.get(in_session(str(number % 7)))
        sessions.add_exchange(
            session, build_past_exchange(Request("m"), None, None, is_certain=True, body_bytes=300)
        )
    exchanges = [one for session in sessions._sessions.values() for one in session.exchanges]
    assert sum(one.body_bytes for one in exchanges) == sessions._total_bytes == 900
    sessions.add_exchange(
        session, build_past_exchange(Request("m"), None, None, is_certain=True, body_bytes=5000)
    )
    assert len(session.exchanges) == 1  # the next exchange continues the last one


def test_summary_memory_is_bounded() -> None:
    summary = TrafficSummary()
    for number in range(3000):
        names = {"session": f"s{number}", "model": f"m{number}"}
        summary.add(msgspec.structs.replace(ANALYSIS, **names, dispatch=(0.1,) * 5))
    assert (summary.session_count, len(summary.sessions)) == (3000, 1000)
    assert len(summary.total.models) == 101
    assert len(summary.total.dispatch) == 10_000
    text = format_summary(summary, {})
    assert "3000 requests in 3000 sessions" in text
    assert len(text.splitlines()) < 100
    assert json.dumps(to_summary_json(summary, {}))


def test_estimates_are_marked_and_an_empty_summary_claims_nothing() -> None:
    assert "No problems found" not in format_summary(TrafficSummary(), {})
    counted = msgspec.structs.replace(ANALYSIS, basis="counted")
    assert "~990 of ~1,000 to prefill, ~900 avoidable" in format_exchange(counted)
    assert "prompt tokens                     ~1,000" in format_summary(
        TrafficSummary([counted]), {}
    )
    sure = msgspec.structs.replace(ANALYSIS, basis="confirmed")
    assert "~" not in format_exchange(sure)


def test_failed_recording_does_not_stop_the_analysis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(recorder: ExchangeRecorder, exchange: CapturedExchange) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(ExchangeRecorder, "write", full)
    quiet = LineDisplay(Console(file=io.StringIO()))
    watcher = Watcher(Endpoint(), ReferenceModels(), quiet, WatchOptions(record=tmp_path / "a"))
    request = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}'
    watcher.process(msgspec.structs.replace(EXCHANGE, request=request))
    assert "not recorded: No space left on device" in watcher.format_report()
    assert "1 request in 1 session" in watcher.format_report()
    watcher.close()


def test_truncated_response_is_not_forwarded_again() -> None:
    """With `--fix`, the client's connection is aborted like the server's."""
    sent: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
        await writer.drain()

    async def send(message: Message) -> None:
        sent.append(message["type"])
        assert message.get("more_body", True)

    async def scene() -> None:
        async with listening(serve) as port:
            scope = {"method": "GET", "path": "/x", "headers": []}
            await forward_request(endpoint(port), scope, b"", send)

    run(scene)
    assert sent == ["http.response.start", "http.response.body"]


def test_fix_mode_limits_buffered_bodies() -> None:
    sent: list[Message] = []
    requests = 0

    async def receive() -> Message:
        nonlocal requests
        requests += 1
        return {"type": "http.request", "body": b"x" * 400, "more_body": True}

    async def send(message: Message) -> None:
        sent.append(message)

    async def scene() -> None:
        async with plain_server() as stage:
            fix_app = FixApp(
                stage.app, Endpoint(), lambda _: None, lambda _: None, max_body_bytes=1000
            )
            scope = {"type": "http", "method": "PUT", "path": "/x", "headers": []}
            await fix_app(scope, receive, send)

    run(scene)
    assert (sent[0]["status"], requests) == (413, 3)


def test_reports_are_private(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("much longer than what comes")
    write_private_file(path, "{}")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("{}", 0o600)


class TestScreens:
    def test_terminal_gets_a_table(self) -> None:
        out = io.StringIO()
        console = Console(file=out, force_terminal=True, width=100, height=30)
        display = create_display(console)
        assert isinstance(display, LiveDisplay)
        display.show(ANALYSIS, TrafficSummary([ANALYSIS]))
        display.close()
        assert "1× billing" in out.getvalue()
        assert "~990" in out.getvalue()

    def test_other_output_gets_lines(self) -> None:
        out = io.StringIO()
        display = create_display(Console(file=out, width=40))
        assert isinstance(display, LineDisplay)
        display.show(ANALYSIS, TrafficSummary())
        display.close()
        assert out.getvalue().count("\n") == 1  # never wrapped, never read as markup
        assert "[bold]a[/bold]" in out.getvalue()


def test_observer_accepts_exchanges_and_closes_in_order() -> None:
    delivered: list[object] = []
    observer = TrafficObserver(delivered.append, on_close=lambda: delivered.append("done"))
    other = msgspec.structs.replace(EXCHANGE, number=2)
    observer.start()
    observer.add_exchange(EXCHANGE)
    observer.add_exchange(other)
    observer.close()
    assert delivered == [EXCHANGE, other, "done"]
