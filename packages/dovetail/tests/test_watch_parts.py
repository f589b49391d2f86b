"""The smaller parts of watch mode: recordings, lenses, sessions, the table in a terminal."""

import asyncio
import errno
import io
import json
import os
import stat
from pathlib import Path

import msgspec
import pytest
from http_stage import run
from rich.console import Console
from served import qwen_folder
from watch_stage import endpoint, listening, plain_server

from dovetail.net.asgi import Message
from dovetail.net.http_client import Endpoint
from dovetail.watch import fix as fix_module
from dovetail.watch import sessions as sessions_module
from dovetail.watch.analysis import Summary
from dovetail.watch.exchange import Exchange, codec_of
from dovetail.watch.fix import FixApp
from dovetail.watch.observer import Tee
from dovetail.watch.passthrough import pass_on
from dovetail.watch.recording import Recorder, RecordingError, recorded, write_private
from dovetail.watch.reference_model import Lenses, ServedModel, stand_in
from dovetail.watch.report import as_json, line, summary_text
from dovetail.watch.screen import LiveScreen, PlainScreen, screen
from dovetail.watch.sessions import Sessions, past
from dovetail.watch.verdict import Finding, Prefix, Verdict
from dovetail.watch.watcher import Options, Watching
from dovetail_model import Identity, Request, TextBlock, Turn

EXCHANGE = Exchange(
    number=1,
    method="POST",
    target="/v1/messages?beta=true",
    began=1.5,
    asked=0.1,
    ended=2.0,
    status=200,
    request_headers={"a": "b"},
    answer_headers={"content-type": "text/event-stream; charset=utf-8"},
    request='{"grüße": 1}'.encode(),
    answer=b"data: \xff\xfe\n\n",
    marks=((0.2, 3), (0.3, 10)),
)


class TestRecordings:
    def test_come_back_as_they_were(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jsonl"
        path.touch(0o644)
        for _ in range(2):  # a second run goes on in the same file
            recorder = Recorder(path, "http://a")
            recorder.add(EXCHANGE)
            recorder.close()
        assert list(recorded(path)) == [EXCHANGE, EXCHANGE]
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert "grüße" in path.read_text()  # text is readable, other bytes are in base64

    def test_a_last_line_that_was_cut_is_left_out(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jsonl"
        recorder = Recorder(path, "http://a")
        recorder.add(EXCHANGE)
        recorder.add(EXCHANGE)
        recorder.close()
        path.write_bytes(path.read_bytes()[:-20])
        assert list(recorded(path)) == [EXCHANGE]

    @pytest.mark.parametrize("text", ["", "{}\n", "nonsense\n", '{"dovetail_recording": 9}\n'])
    def test_other_files_are_refused(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "a").write_text(text)
        with pytest.raises(RecordingError, match="is no recording"):
            list(recorded(tmp_path / "a"))

    def test_a_broken_line_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_text('{"dovetail_recording": 1}\n{"number": 1}\n')
        with pytest.raises(RecordingError, match="line 2"):
            list(recorded(tmp_path / "a"))


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
def test_which_requests_a_model_answers(method: str, target: str, name: str | None) -> None:
    codec = codec_of(method, target)
    assert (codec.name if codec is not None else None) == name


class TestLenses:
    @pytest.mark.long
    def test_the_folder_that_a_server_names(self, tmp_path: Path) -> None:
        folder = qwen_folder(tmp_path / "model")
        lenses = Lenses(listed=(ServedModel("some", str(folder)),))
        assert lenses.of("some").real
        assert lenses.of("some") is lenses.of("some")
        assert lenses.of("claude-alias").origin == str(folder)  # it serves nothing else

    def test_the_cache_of_the_hub(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        qwen_folder(tmp_path / "models--some--model" / "snapshots" / "1")
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
        assert Lenses().of("some/model").real
        assert not Lenses().of("some/other").real

    def test_a_folder_that_is_no_model_is_noted(self, tmp_path: Path) -> None:
        lenses = Lenses(listed=(ServedModel("some", str(tmp_path)),))
        assert not lenses.of("some").real
        assert lenses.notes

    def test_a_stand_in_knows_the_family_by_the_name(self) -> None:
        assert stand_in("Qwen/Qwen3-Coder-30B").family == "qwen3_coder"
        assert stand_in("who-knows").family is None

    @pytest.mark.long
    def test_clients_may_name_anything(self) -> None:
        lenses = Lenses()
        names = ["~nobody-there/x", "x" * 5000, "a\0b", *(f"m{n}" for n in range(1000))]
        assert len({id(lenses.of(name)) for name in names}) == 1
        assert len(lenses._found) < 300


def test_sessions_by_name_and_by_turns() -> None:
    sessions = Sessions()
    turns = tuple(Turn("user", (TextBlock(text),)) for text in "abcd")
    first = sessions.of(Request("m", turns[:1]))
    assert sessions.of(Request("m", turns[:3])) is first
    assert sessions.of(Request("m", turns[:1])) is not first  # the same words, another one
    assert sessions.of(Request("m", turns[1:])) is not first
    named = sessions.of(Request("m", turns, identity=Identity(session="x" * 36)))
    assert (named.label, named.count) == ("xxxxxxxx", 1)


VERDICT = Verdict(
    number=1,
    session="abc",
    place=1,
    api="chat",
    model="m",
    status=200,
    began=0.0,
    duration=1.0,
    streamed=True,
    served=Prefix(1000, 10),
    exact=Prefix(990, 900),
    needless=900,
    broke=Finding("billing", "line 1: [bold]a[/bold] became b"),
)


def in_session(name: str) -> Request:
    return Request("m", identity=Identity(session=name))


def test_sessions_whose_names_begin_alike_stay_apart() -> None:
    """Codex's ids begin with the time: those of one minute have their first letters in common."""
    sessions = Sessions()
    ids = [f"019a7c3e-{number:04x}-7000-8000-000000000000" for number in range(20)]
    labels = [sessions.of(in_session(id)).label for id in ids]
    assert len(set(labels)) == len(ids)
    assert labels[0] == ids[0][:8]
    assert sessions.of(in_session("\x1b[2J")).label == "?[2J"


def test_what_sessions_remember_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions_module, "_MOST_BYTES", 1000)
    sessions = Sessions()
    for number in range(100):
        session = sessions.of(in_session(str(number % 7)))
        sessions.end(session, past(Request("m"), None, None, sure=True, size=300))
    kept = [one for session in sessions._sessions.values() for one in session.pasts]
    assert sum(one.size for one in kept) == sessions._size == 900
    sessions.end(session, past(Request("m"), None, None, sure=True, size=5000))
    assert len(session.pasts) == 1  # the last one is what the next goes on from


def test_what_a_summary_remembers_is_bounded() -> None:
    summary = Summary()
    for number in range(3000):
        names = {"session": f"s{number}", "model": f"m{number}"}
        summary.add(msgspec.structs.replace(VERDICT, **names, dispatch=(0.1,) * 5))
    assert (summary.begun, len(summary.sessions)) == (3000, 1000)
    assert len(summary.whole.models) == 101
    assert len(summary.whole.dispatch) == 10_000
    told = summary_text(summary, {})
    assert "3000 requests in 3000 sessions" in told
    assert len(told.splitlines()) < 100
    assert json.dumps(as_json(summary, {}))


def test_estimates_are_marked_and_nothing_seen_is_not_nothing_lost() -> None:
    assert "Nothing was lost" not in summary_text(Summary(), {})
    counted = msgspec.structs.replace(VERDICT, basis="counted")
    assert "~990 of ~1,000 to compute, ~900 needlessly" in line(counted)
    assert "in prompts                        ~1,000" in summary_text(Summary([counted]), {})
    sure = msgspec.structs.replace(VERDICT, basis="confirmed")
    assert "~" not in line(sure)


def test_a_recording_that_cannot_be_written_does_not_end_the_looking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(recorder: Recorder, exchange: Exchange) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Recorder, "add", full)
    quiet = PlainScreen(Console(file=io.StringIO()))
    watching = Watching(Endpoint(), Lenses(), quiet, Options(record=tmp_path / "a"))
    request = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}'
    watching.take(msgspec.structs.replace(EXCHANGE, request=request))
    assert "not recorded: No space left on device" in watching.report()
    assert "1 request in 1 session" in watching.report()
    watching.close()


def test_an_answer_that_breaks_off_is_not_answered_twice() -> None:
    """What `--fix` hands on: the client's connection breaks, as the server's did."""
    told: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
        await writer.drain()

    async def answer(message: Message) -> None:
        told.append(message["type"])
        assert message.get("more_body", True)

    async def scene() -> None:
        async with listening(serve) as port:
            scope = {"method": "GET", "path": "/x", "headers": []}
            await pass_on(endpoint(port), scope, b"", answer)

    run(scene)
    assert told == ["http.response.start", "http.response.body"]


def test_fixing_holds_no_body_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fix_module, "_MOST_BODY", 1000)
    told: list[Message] = []
    asked = 0

    async def receive() -> Message:
        nonlocal asked
        asked += 1
        return {"type": "http.request", "body": b"x" * 400, "more_body": True}

    async def send(message: Message) -> None:
        told.append(message)

    async def scene() -> None:
        async with plain_server() as stage:
            fixing = FixApp(stage.app, Endpoint(), lambda _: None, lambda _: None)
            scope = {"type": "http", "method": "PUT", "path": "/x", "headers": []}
            await fixing(scope, receive, send)

    run(scene)
    assert (told[0]["status"], asked) == (413, 3)


def test_reports_are_for_their_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("much longer than what comes")
    write_private(path, "{}")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("{}", 0o600)


class TestScreens:
    def test_a_table_for_a_terminal(self) -> None:
        out = io.StringIO()
        console = Console(file=out, force_terminal=True, width=100, height=30)
        made = screen(console)
        assert isinstance(made, LiveScreen)
        made.show(VERDICT, Summary([VERDICT]))
        made.close()
        assert "1× billing" in out.getvalue()
        assert "~990" in out.getvalue()

    def test_lines_elsewhere(self) -> None:
        out = io.StringIO()
        made = screen(Console(file=out, width=40))
        assert isinstance(made, PlainScreen)
        made.show(VERDICT, Summary())
        made.close()
        assert out.getvalue().count("\n") == 1  # never wrapped, never read as markup
        assert "[bold]a[/bold]" in out.getvalue()


def test_a_tee_takes_exchanges_from_elsewhere_and_ends_in_order() -> None:
    told: list[object] = []
    tee = Tee(told.append, done=lambda: told.append("done"))
    other = msgspec.structs.replace(EXCHANGE, number=2)
    tee.start()
    tee.exchange(EXCHANGE)
    tee.exchange(other)
    tee.close()
    assert told == [EXCHANGE, other, "done"]
