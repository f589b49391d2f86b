"""The benchmark of preparing works, and what a tool step takes does not grow with its session."""

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
MOST_CALLS = 4_000  # of functions, in a tool step of the Messages API: 2,300 in 2026
FLAT = 1.3  # words that were never said before take calls, and one result has more of them


@pytest.fixture(scope="module")
def served() -> Model:
    lack = inside.missing()
    if lack is not None:
        pytest.skip(lack)
    return inside.model()


def session(api: str, served: Model) -> Session:
    return Session(DIALECTS[api], inside.preparer(served, Keyring([b"k" * 32])), served.tokenizer)


async def calls_of_a_step(talk: Session) -> int:
    """Calls of Python's and C's functions in decoding and preparing the next request."""
    counted = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    await talk.step()
    body = talk.body()
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        await talk.preparer.prepare(talk.decode(body, talk.memory))
    finally:
        sys.setprofile(before)
    return counted


@pytest.mark.parametrize("api", DIALECTS)
def test_every_api_grows_from_what_is_known(api: str, served: Model) -> None:
    async def grown() -> list[str]:
        talk = session(api, served)
        found: list[str] = []
        for _ in range(LOOP + 2):
            await talk.grow()
            found.append((await talk.prepare()).prompt.origin)
        return found

    assert asyncio.run(grown()) == ["grown"] * LOOP + ["resumed", "grown"]


def test_a_tool_step_takes_no_more_calls_in_a_long_session(served: Model) -> None:
    async def counted() -> tuple[int, int]:
        talk = session("messages", served)
        least = []
        for until in (SMALL, LARGE):
            for _ in range(until):
                await talk.grow()
            least.append(min([await calls_of_a_step(talk) for _ in range(3)]))
        return least[0], least[1]

    small, large = asyncio.run(counted())
    assert large <= MOST_CALLS
    assert large <= small * FLAT


@pytest.mark.parametrize("api", over_http.APIS)
def test_a_history_that_nobody_knows_has_about_the_tokens_asked_for(
    api: str, served: Model
) -> None:
    dialect = DIALECTS[api]
    for tokens in (15_000, 30_000):
        matter, items = over_http.begun(dialect, tokens, 1)
        body = over_http.written(dialect, matter, items)
        request = dialect.codec.decode(body, {}, None)
        prompt = asyncio.run(inside.preparer(served, Keyring([b"k" * 32])).prepare(request)).prompt
        assert len(prompt.ids) == pytest.approx(tokens, rel=0.15)
