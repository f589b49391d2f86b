"""The preparation benchmark, and the constant cost of a tool step in growing sessions."""

import asyncio
import sys
from types import FrameType

import pytest
from benchmarks.prepare import inside, over_http
from benchmarks.prepare.dialects import DIALECTS
from benchmarks.prepare.session import LOOP, Session

from dovetail.ledger.keyring import Keyring
from dovetail.models.loader import Model

SMALL, LARGE = 3, 60  # steps
MAX_CALLS = 4_000  # function calls in a tool step of the Messages API: 2,300 in 2026
FLAT = 1.3  # new words take calls, and one result has more of them


@pytest.fixture(scope="module")
def qwen3() -> Model:
    lack = inside.missing()
    if lack is not None:
        pytest.skip(lack)
    return inside.model()


def session(api: str, qwen3: Model) -> Session:
    return Session(DIALECTS[api], inside.preparer(qwen3, Keyring([b"k" * 32])), qwen3.tokenizer)


async def calls_of_a_step(conversation: Session) -> int:
    """Count calls of Python and C functions while decoding and preparing the next request."""
    counted = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    await conversation.step()
    body = conversation.body()
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        await conversation.preparer.prepare(conversation.decode(body, conversation.memory))
    finally:
        sys.setprofile(before)
    return counted


@pytest.mark.parametrize("api", DIALECTS)
def test_known_turns_are_reused_in_every_api(api: str, qwen3: Model) -> None:
    async def grown() -> list[str]:
        conversation = session(api, qwen3)
        found: list[str] = []
        for _ in range(LOOP + 2):
            await conversation.grow()
            found.append((await conversation.prepare()).prompt.origin)
        return found

    assert asyncio.run(grown()) == ["grown"] * LOOP + ["resumed", "grown"]


def test_cost_of_a_tool_step_is_independent_of_session_length(qwen3: Model) -> None:
    async def counted() -> tuple[int, int]:
        conversation = session("messages", qwen3)
        fewest = []
        for until in (SMALL, LARGE):
            for _ in range(until):
                await conversation.grow()
            fewest.append(min([await calls_of_a_step(conversation) for _ in range(3)]))
        return fewest[0], fewest[1]

    small, large = asyncio.run(counted())
    assert large <= MAX_CALLS
    assert large <= small * FLAT


@pytest.mark.parametrize("api", over_http.APIS)
def test_unknown_history_has_about_the_requested_tokens(api: str, qwen3: Model) -> None:
    dialect = DIALECTS[api]
    for tokens in (15_000, 30_000):
        texts, items = over_http.begun(dialect, tokens, 1)
        body = over_http.written(dialect, texts, items)
        request = dialect.codec.decode(body, {}, None)
        prompt = asyncio.run(inside.preparer(qwen3, Keyring([b"k" * 32])).prepare(request)).prompt
        assert len(prompt.ids) == pytest.approx(tokens, rel=0.15)
