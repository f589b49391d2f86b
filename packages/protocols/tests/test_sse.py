"""Writing and reading server-sent events."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

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
