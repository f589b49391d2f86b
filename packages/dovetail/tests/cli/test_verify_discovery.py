"""What `dovetail verify` finds out of a server before and beside its checks."""

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from verify_failures import Asked, Fault, Play, Told, answer, faulty_server, turned_away

from dovetail_verify.check import CheckOutcome, CheckResult
from dovetail_verify.exchange import HttpExchange, SentRequest, SseFrame, abbreviate
from dovetail_verify.http_client import Endpoint
from dovetail_verify.suite import (
    BLACK_BOX_CHECKS,
    TargetUnusable,
    discover_target,
    run_checks,
    select_checks,
)
from dovetail_verify.target import TargetServer

pytestmark = pytest.mark.timeout(120)
COLD = 0.5  # seconds that a prompt takes which the server has not seen before


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Play]:
    with faulty_server(tmp_path_factory.mktemp("own")) as play:
        yield play


@pytest.fixture
def play(server: Play) -> Iterator[Play]:
    yield server
    server.layer.fault = None


def found(play: Play, model: str = "") -> TargetServer:
    stage = TargetServer(Endpoint.parse(play.url), model, timeout=30)
    asyncio.run(discover_target(stage))
    return stage


def listing(entry: dict[str, object]) -> Callable[[Asked], Told | None]:
    body = json.dumps({"object": "list", "data": [entry] if entry else []})
    return lambda asked: answer(200, body) if asked.path == "/v1/models" else None


def test_the_first_model_its_window_and_the_apis_are_found(play: Play) -> None:
    stage = found(play)
    assert stage.model == play.model
    assert stage.context_length == 65536
    assert stage.missing_apis == {}
    assert stage.features == set()


def test_the_window_is_also_found_where_llamacpp_tells_it(play: Play) -> None:
    props = answer(200, '{"default_generation_settings":{"n_ctx":2048}}')
    listed = listing({"id": play.model})
    play.layer.fault = Fault(refuse=lambda a: props if a.path == "/props" else listed(a))
    assert found(play).context_length == 2048


def test_a_server_that_does_not_tell_its_window_has_none(play: Play) -> None:
    play.layer.fault = Fault(refuse=listing({"id": play.model}))
    assert found(play).context_length is None


def test_a_server_without_models_needs_one_named(play: Play) -> None:
    play.layer.fault = Fault(refuse=listing({}))
    with pytest.raises(TargetUnusable, match="--model"):
        found(play)
    assert found(play, play.model).model == play.model


def test_a_server_without_any_api_is_not_judged(play: Play) -> None:
    play.layer.fault = turned_away(lambda asked: asked.method == "POST", 404)
    with pytest.raises(TargetUnusable, match="none of the three APIs"):
        found(play)


def listed(asked: Asked) -> bool:
    return asked.path == "/v1/models"


def posted(asked: Asked) -> bool:
    return asked.method == "POST"


def plain(asked: Asked) -> bool:
    """A real request: not the empty one that only looks whether an API is there."""
    return posted(asked) and asked.body != b"{}"


@pytest.mark.parametrize(
    ("fault", "key", "said"),
    [
        (turned_away(listed, 429), None, "GET /v1/models is answered with status 429"),
        (turned_away(listed, 200, "<html>", "text/html"), None, "look at the address"),
        (turned_away(listed, 401), None, "asks for a key (status 401)"),
        (turned_away(posted, 401), None, "asks for a key (status 401)"),
        (turned_away(posted, 403), "a-key", "does not take this key (status 403)"),
        (turned_away(plain, 500), None, "does not answer: POST /v1/messages is answered with"),
        (turned_away(plain, 503, '{"error":{"message":"busy"}}'), None, "refused: busy"),
    ],
)
def test_a_server_that_answers_nothing_is_told_once(
    play: Play, fault: Fault, key: str | None, said: str
) -> None:
    play.layer.fault = fault
    with pytest.raises(TargetUnusable, match=re.escape(said)):
        asyncio.run(
            discover_target(TargetServer(Endpoint.parse(play.url), "", api_key=key, timeout=30))
        )


def test_one_api_that_answers_is_enough_to_judge_the_others(play: Play) -> None:
    play.layer.fault = turned_away(lambda asked: plain(asked) and "chat" not in asked.path, 401)
    assert found(play).missing_apis == {}


def test_an_api_that_stays_silent_is_given_up() -> None:
    async def judged() -> list[CheckResult]:
        connections: set[asyncio.Task[None] | None] = set()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connections.add(asyncio.current_task())
            await reader.read()
            writer.close()
            await writer.wait_closed()

        async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            stage = TargetServer(Endpoint("127.0.0.1", port), "some-model", timeout=0.05)
            checks = select_checks(BLACK_BOX_CHECKS, ["models", "tokens"])
            found = await run_checks(stage, checks, lambda check, finding: None)
            await asyncio.gather(*filter(None, connections))
            return found

    notes = [finding.message for finding in asyncio.run(judged())]
    asked = [note.startswith("not asked") for note in notes]
    assert asked == [False, False, False, True, True, False], notes


def test_a_key_that_the_server_repeats_is_not_in_the_report(play: Play) -> None:
    body = '{"error":{"message":"sk-secret is wrong","type":"x"}}'
    play.layer.fault = turned_away(lambda asked: asked.path == "/health", 401, body)
    stage = TargetServer(Endpoint.parse(play.url), play.model, api_key="sk-secret", timeout=30)
    checks = select_checks(BLACK_BOX_CHECKS, ["transport.health"])
    (finding,) = asyncio.run(run_checks(stage, checks, lambda check, finding: None))
    assert finding.outcome is CheckOutcome.FAIL
    assert "(the key) is wrong" in finding.received


def billing_line(play: Play, fault: Fault) -> CheckResult:
    stage = found(play)
    play.layer.fault = fault
    checks = select_checks(BLACK_BOX_CHECKS, ["messages.cache.billing_line"])
    return asyncio.run(run_checks(stage, checks, lambda check, finding: None))[0]


def untold(asked: Asked, told: Told) -> Told:
    """Usage without a word of cached tokens."""
    body = re.sub(rb'"cache_read_input_tokens":[0-9]+', b'"cache_read_input_tokens":0', told.body)
    return replace(told, body=body)


def cache_by(part: Callable[[Asked], str]) -> Callable[[Asked], float]:
    """A server that needs time for a prompt, unless it has seen this part of it before."""
    seen: set[str] = set()

    def delay(asked: Asked) -> float:
        known = part(asked) in seen
        seen.add(part(asked))
        return 0.0 if known else COLD

    return delay


def test_without_cached_tokens_and_without_time_nothing_is_judged(play: Play) -> None:
    finding = billing_line(play, Fault(tell=untold))
    assert finding.outcome is CheckOutcome.NOT_APPLICABLE
    assert "neither" in finding.message


@pytest.mark.long
def test_time_tells_that_the_line_breaks_the_prefix(play: Play) -> None:
    delay = cache_by(lambda asked: json.dumps(asked.json["system"]))
    assert billing_line(play, Fault(tell=untold, delay=delay)).outcome is CheckOutcome.FAIL


def test_time_tells_that_the_line_is_taken_out(play: Play) -> None:
    delay = cache_by(lambda asked: asked.json["system"][1]["text"])
    assert billing_line(play, Fault(tell=untold, delay=delay)).outcome is CheckOutcome.PASS


def after_hanging_up(play: Play, seconds: float) -> CheckResult:
    """What is found of a server without metrics whose next answer takes so long."""
    stage, given_up = found(play), list[bool]()

    def delay(asked: Asked) -> float:
        late = bool(given_up)
        given_up.extend([True] if b"one thousand" in asked.body else [])
        return seconds if late else 0.0

    away = turned_away(lambda asked: asked.path == "/metrics", 404)
    play.layer.fault = Fault(refuse=away.refuse, delay=delay, deaf=True)
    checks = select_checks(BLACK_BOX_CHECKS, ["transport.hang_up"])
    return asyncio.run(run_checks(stage, checks, lambda check, finding: None))[0]


@pytest.mark.long
def test_without_metrics_the_next_request_tells_whether_the_place_is_free(play: Play) -> None:
    assert after_hanging_up(play, 0.0).outcome is CheckOutcome.PASS
    assert after_hanging_up(play, 6.0).outcome is CheckOutcome.FAIL


def test_evidence_is_short_and_hides_keys() -> None:
    sent = SentRequest("POST", "/x", {"a": "b" * 5000}, {"x-api-key": "secret", "accept": "y"})
    assert "secret" not in str(sent)
    assert "[accept: y]" in str(sent)
    assert len(str(sent)) < 700
    assert abbreviate("a \n b") == "a b"


def test_events_are_told_by_name_and_counted() -> None:
    chunk = {"choices": [{"delta": {"content": "x"}, "finish_reason": None}]}
    frames = [
        SseFrame("ping", '{"type":"ping"}'),
        *[SseFrame("", json.dumps(chunk))] * 3,
        SseFrame("", '{"choices":[{"delta":{},"finish_reason":"stop"}]}'),
        SseFrame("", '{"choices":[],"usage":{"x":1}}'),
        SseFrame("", '{"choices":[]}'),
        SseFrame("", '{"odd":1}'),
        SseFrame("", "[DONE]"),
    ]
    came = HttpExchange(SentRequest("GET", "/"), 200, {}, b"", frames).summary
    assert came == (
        "200, 9 events: ping, chunk of content ×3, chunk of finish stop, chunk of usage, "
        'empty chunk, {"odd":1}, [DONE]'
    )
