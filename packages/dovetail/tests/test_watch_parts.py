"""The smaller parts of watch mode: recordings, lenses, sessions, the table in a terminal."""

import io
import stat
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from served import qwen_folder

from dovetail.watch.exchange import Exchange, codec_of
from dovetail.watch.lens import Lenses, ServedModel, stand_in
from dovetail.watch.recording import Recorder, RecordingError, recorded
from dovetail.watch.screen import LiveScreen, PlainScreen, screen
from dovetail.watch.sessions import Sessions
from dovetail.watch.summary import Summary
from dovetail.watch.tee import Tee
from dovetail.watch.verdict import Finding, Prefix, Verdict
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
