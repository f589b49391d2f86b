"""Exact turns with a real vLLM, checked by the ids that it reports as prompt and output.

The engine, its prefix cache, the tokenizer, the template, the sampling at temperature 1, the server
and the SDKs are real. The weights are random, so turns are random text. Turns that end by
themselves, with a stop token, are calls whose form is set by a grammar that leaves their text open.
Qwen3's template retains turns until the next user message, so the sessions are long tool loops.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from recording_proxy import Recorded, Recorder, recording
from sdk_conversations import APIS, TurnResult, start_conversation
from server_process import Running, served
from vllm_environment import NAME, REAL, Vllm, shared_vllm

from dovetail_tokenizers import load_tokenizer

pytestmark = REAL

BLOCK = 32  # tokens per cache block of the server
LONG = 20_000
SESSIONS, TURNS = 10, 20
FIRST_ADDED = 151_643  # of Qwen3's tokens: added tokens start here, most of them control tokens
WORDS = ("apple", "river", "stone", "green", "seven", "cloud", "paper", "light")


@pytest.fixture(scope="module")
def vllm(pytestconfig: pytest.Config) -> Vllm:
    return shared_vllm(pytestconfig)


@pytest.fixture(scope="module")
def recorder(vllm: Vllm) -> Iterator[Recorder]:
    with recording(vllm.port) as recorder:
        yield recorder


@pytest.fixture(scope="module")
def server(recorder: Recorder) -> Iterator[Running]:
    """Start a server with one command, which detects the model's name, window and template."""
    with served("--engine", "vllm", "--engine-url", recorder.url) as running:
        assert running.greeting.startswith(f"serving {NAME} at ")
        yield running


def session(recorder: Recorder, name: str) -> list[Recorded]:
    return [one for one in recorder.completions if one.request.get("session_id") == name]


@pytest.mark.parametrize("api", APIS)
def test_long_prompt_is_cached_on_the_second_turn(
    server: Running, recorder: Recorder, api: str
) -> None:
    conversation = start_conversation(server, api, NAME, f"long-{api}", limit=8)
    words = " ".join(WORDS[n * n % 97 % 8] for n in range(LONG))
    first = conversation.send(f"{api}: {words}")
    second = conversation.send("And now?")
    one, two = session(recorder, f"long-{api}")
    assert first.input == len(one.prompt) > LONG
    assert first.cached == one.cached
    assert first.cached < BLOCK * 10  # at most the head is cached from other requests
    assert second.cached == two.cached
    assert second.cached >= len(one.prompt) // BLOCK * BLOCK
    assert second.input - second.cached < 100


def generated_ids(turn: Recorded) -> list[int]:
    """Return the generated ids without the stop token: the template writes its own."""
    return turn.generated[:-1] if turn.finish == "stop" else turn.generated


def follows(before: Recorded, after: Recorded) -> bool:
    """Return whether a prompt begins with the previous prompt and the output generated on it."""
    known = before.prompt + generated_ids(before)
    return after.prompt[: len(known)] == known


def run_long_session(server: Running, number: int) -> list[TurnResult]:
    """Run one question with a long tool loop: the part of a session that the template retains."""
    conversation = start_conversation(server, APIS[number % 3], NAME, f"s{number}", limit=200)
    shown = [conversation.send(f"Session {number}.", must_call=True)]
    while len(shown) < TURNS:
        shown.append(
            conversation.send_result(f"Result {len(shown)} of {number}: é 漢字 🦜", must_call=True)
        )
    return shown


def test_two_hundred_turns_at_temperature_one(server: Running, recorder: Recorder) -> None:
    with ThreadPoolExecutor(SESSIONS) as threads:
        shown = list(threads.map(lambda n: run_long_session(server, n), range(SESSIONS)))
    completions = [session(recorder, f"s{number}") for number in range(SESSIONS)]
    pairs = [pair for one in completions for pair in pairwise(one)]
    assert len(pairs) == SESSIONS * (TURNS - 1)
    assert [pair for pair in pairs if not follows(*pair)] == []
    # And the engine found all cacheable blocks of it in its cache.
    assert [pair for pair in pairs if (pair[1].cached or 0) < whole_blocks(pair[0])] == []
    for turns, one in zip(shown, completions, strict=True):
        check_client_results(turns, one)


def whole_blocks(turn: Recorded) -> int:
    """Return how many tokens of a prompt and its turn can be cached: the last is not computed."""
    return (len(turn.prompt) + len(turn.generated) - 1) // BLOCK * BLOCK


def check_client_results(turns: Sequence[TurnResult], completions: Sequence[Recorded]) -> None:
    """Check that the client gets the engine's own numbers, and every turn was a finished call."""
    for turn, one in zip(turns, completions, strict=True):
        assert (turn.input, turn.cached) == (len(one.prompt), one.cached)
        assert turn.output == len(one.generated)
        guided = "structured_outputs" in one.request
        assert (guided, one.finish, len(turn.calls)) == (True, "stop", 1), turn


def test_turns_without_reasoning_keep_their_tokens_after_a_user_message(
    server: Running, recorder: Recorder, vllm: Vllm
) -> None:
    """Qwen3's template then renders earlier turns again.

    Text that it does not change keeps its ids.

    Noise that the template trims at its ends is changed text, and a control token inside it is
    rendered as text from then on. All other turns must match id by id.
    """
    tokenizer = load_tokenizer(vllm.folder)

    def chat(number: int) -> None:
        conversation = start_conversation(
            server, APIS[number % 3], NAME, f"u{number}", limit=12, think=True
        )
        for turn in range(8):
            conversation.send(f"Question {turn} of {number}: é 漢字?")

    with ThreadPoolExecutor(SESSIONS) as threads:
        list(threads.map(chat, range(SESSIONS)))
    pairs = [pair for n in range(SESSIONS) for pair in pairwise(session(recorder, f"u{n}"))]
    assert len(pairs) == SESSIONS * 7
    unchanged = [
        (before, after)
        for before, after in pairs
        if tokenizer.decode(after.prompt).startswith(
            tokenizer.decode(before.prompt + generated_ids(before))
        )
        and max(generated_ids(before)) < FIRST_ADDED
    ]
    assert len(unchanged) > len(pairs) // 2
    lost = [(before, after) for before, after in unchanged if not follows(before, after)]
    assert [
        (b.request["session_id"], generated_ids(b), tokenizer.decode(generated_ids(b)))
        for b, _ in lost
    ] == []
