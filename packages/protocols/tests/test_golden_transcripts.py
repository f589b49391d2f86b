"""The reviewed bytes that every API sends for the same events."""

import msgspec
import pytest
from golden_transcripts import Transcript, transcripts

TRANSCRIPTS = list(transcripts())
EACH = pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda t: t.id)


@EACH
def test_stream_equals_the_golden_one(transcript: Transcript) -> None:
    golden = (transcript.folder / f"{transcript.api}.sse").read_bytes()
    assert transcript.stream().decode() == golden.decode()


@EACH
def test_batches_of_events_yield_the_same_bytes(transcript: Transcript) -> None:
    assert transcript.stream_at_once() == transcript.stream()


@EACH
def test_non_streaming_response_equals_the_golden_one(transcript: Transcript) -> None:
    if transcript.failure() is not None:
        pytest.skip("a failure before the end of a whole answer is an HTTP error")
    golden = (transcript.folder / f"{transcript.api}.json").read_bytes()
    assert msgspec.json.decode(transcript.whole()) == msgspec.json.decode(golden)


def test_required_cases_exist() -> None:
    wanted = {
        "plain_text",
        "think_text",
        "think_call",
        "think_call_think_call",
        "parallel_calls",
        "text_between_calls",
        "custom_tool",
        "namespaced_tool",
        "max_tokens_in_a_call",
        "failure_in_the_middle",
        "stop_sequence",
        "cached_tokens",
        "refusal",
        "empty_output",
    }
    assert wanted <= {transcript.folder.name for transcript in TRANSCRIPTS}
    apis = [transcript.api for transcript in TRANSCRIPTS]
    assert min(apis.count(api) for api in ("messages", "responses", "chat")) >= 14
