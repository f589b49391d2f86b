"""Writing and reading server-sent events."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail_model import EngineUnavailable
from dovetail_protocols import ServerEvent, SseReader
from dovetail_protocols.sse import comment, frame


@given(
    events=st.lists(st.tuples(st.sampled_from(["", "a.b"]), st.text(max_size=9)), max_size=5),
    size=st.integers(1, 9),
)
def test_frames_are_read_back_in_any_chunks(events: list[tuple[str, str]], size: int) -> None:
    data = [msgspec.json.encode(text) for _, text in events]
    stream = comment("hello") + b"".join(
        frame(piece, name.encode()) for (name, _), piece in zip(events, data, strict=True)
    )
    reader = SseReader()
    found = [e for at in range(0, len(stream), size) for e in reader.feed(stream[at : at + size])]
    assert found == [
        ServerEvent(name, piece.decode()) for (name, _), piece in zip(events, data, strict=True)
    ]


@pytest.mark.parametrize("piece", [b"data: " + b"x" * 99, b"data: x\n", b"x" * 50])
def test_event_without_end_is_rejected(piece: bytes) -> None:
    """Whether it is one line or many."""
    reader = SseReader(max_bytes=1000)
    with pytest.raises(EngineUnavailable, match="event of more than 1000 bytes"):
        list(map(reader.feed, [piece] * 1000))


@pytest.mark.parametrize("piece", [b": alive\n\n", b"data: x\n\n", b"data: x\n\ndata: y"])
def test_complete_events_are_not_limited_together(piece: bytes) -> None:
    reader = SseReader(max_bytes=100)
    for _ in range(1000):
        reader.feed(piece)
        reader.feed(b"\n\n")
