"""What `dovetail verify` finds out of a server before and beside its checks."""

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from verify_failures import (
    AsgiRequest,
    AsgiResponse,
    Fault,
    FaultyServer,
    faulty_server,
    make_response,
    respond_when,
)

from dovetail_verify.check import CheckOutcome, CheckResult
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
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyServer]:
    with faulty_server(tmp_path_factory.mktemp("own")) as faulty:
        yield faulty


@pytest.fixture
def faulty(server: FaultyServer) -> Iterator[FaultyServer]:
    yield server
    server.layer.fault = None


def discovered(faulty: FaultyServer, model: str = "") -> TargetServer:
    target = TargetServer(Endpoint.parse(faulty.url), model, timeout=30)
    asyncio.run(discover_target(target))
    return target


def listing(entry: dict[str, object]) -> Callable[[AsgiRequest], AsgiResponse | None]:
    body = json.dumps({"object": "list", "data": [entry] if entry else []})
    return lambda request: make_response(200, body) if request.path == "/v1/models" else None


def test_the_first_model_its_context_length_and_the_apis_are_found(faulty: FaultyServer) -> None:
    target = discovered(faulty)
    assert target.model == faulty.model
    assert target.context_length == 65536
    assert target.missing_apis == {}
    assert target.features == set()


def test_the_context_length_is_also_found_where_llamacpp_reports_it(faulty: FaultyServer) -> None:
    props = make_response(200, '{"default_generation_settings":{"n_ctx":2048}}')
    entries = listing({"id": faulty.model})
    faulty.layer.fault = Fault(respond=lambda a: props if a.path == "/props" else entries(a))
    assert discovered(faulty).context_length == 2048


def test_a_server_that_does_not_report_its_context_length_has_none(faulty: FaultyServer) -> None:
    faulty.layer.fault = Fault(respond=listing({"id": faulty.model}))
    assert discovered(faulty).context_length is None


def test_a_server_without_models_needs_one_named(faulty: FaultyServer) -> None:
    faulty.layer.fault = Fault(respond=listing({}))
    with pytest.raises(TargetUnusable, match="--model"):
        discovered(faulty)
    assert discovered(faulty, faulty.model).model == faulty.model


def test_a_server_without_any_api_is_not_judged(faulty: FaultyServer) -> None:
    faulty.layer.fault = respond_when(lambda request: request.method == "POST", 404)
    with pytest.raises(TargetUnusable, match="none of the three APIs"):
        discovered(faulty)


def is_listing(request: AsgiRequest) -> bool:
    return request.path == "/v1/models"


def is_post(request: AsgiRequest) -> bool:
    return request.method == "POST"


def is_generation(request: AsgiRequest) -> bool:
    """A real request: not the empty one that only looks whether an API is there."""
    return is_post(request) and request.body != b"{}"


@pytest.mark.parametrize(
    ("fault", "key", "expected"),
    [
        (respond_when(is_listing, 429), None, "GET /v1/models returned status 429"),
        (respond_when(is_listing, 200, "<html>", "text/html"), None, "check the URL"),
        (respond_when(is_listing, 401), None, "requires an API key (status 401)"),
        (respond_when(is_post, 401), None, "requires an API key (status 401)"),
        (respond_when(is_post, 403), "a-key", "rejects the API key (status 403)"),
        (
            respond_when(is_generation, 500),
            None,
            "does not respond: POST /v1/messages returned",
        ),
        (respond_when(is_generation, 503, '{"error":{"message":"busy"}}'), None, "rejected: busy"),
    ],
)
def test_a_server_that_serves_nothing_is_reported_once(
    faulty: FaultyServer, fault: Fault, key: str | None, expected: str
) -> None:
    faulty.layer.fault = fault
    with pytest.raises(TargetUnusable, match=re.escape(expected)):
        asyncio.run(
            discover_target(TargetServer(Endpoint.parse(faulty.url), "", api_key=key, timeout=30))
        )


def test_one_api_that_works_is_enough_to_judge_the_others(faulty: FaultyServer) -> None:
    faulty.layer.fault = respond_when(
        lambda request: is_generation(request) and "chat" not in request.path, 401
    )
    assert discovered(faulty).missing_apis == {}


def test_a_key_that_the_server_repeats_is_not_in_the_report(faulty: FaultyServer) -> None:
    body = '{"error":{"message":"sk-secret is wrong","type":"x"}}'
    faulty.layer.fault = respond_when(lambda request: request.path == "/health", 401, body)
    target = TargetServer(Endpoint.parse(faulty.url), faulty.model, api_key="sk-secret", timeout=30)
    checks = select_checks(BLACK_BOX_CHECKS, ["transport.health"])
    (result,) = asyncio.run(run_checks(target, checks, lambda check, result: None))
    assert result.outcome is CheckOutcome.FAIL
    assert "(API key) is wrong" in result.received


def billing_line(faulty: FaultyServer, fault: Fault) -> CheckResult:
    target = discovered(faulty)
    faulty.layer.fault = fault
    checks = select_checks(BLACK_BOX_CHECKS, ["messages.cache.billing_line"])
    return asyncio.run(run_checks(target, checks, lambda check, result: None))[0]


def without_cached_tokens(request: AsgiRequest, response: AsgiResponse) -> AsgiResponse:
    """Usage without a word of cached tokens."""
    body = re.sub(
        rb'"cache_read_input_tokens":[0-9]+', b'"cache_read_input_tokens":0', response.body
    )
    return replace(response, body=body)


def cache_by(part: Callable[[AsgiRequest], str]) -> Callable[[AsgiRequest], float]:
    """A server that needs time for a prompt, unless it has seen this part of it before."""
    seen: set[str] = set()

    def delay(request: AsgiRequest) -> float:
        known = part(request) in seen
        seen.add(part(request))
        return 0.0 if known else COLD

    return delay


def test_without_cached_tokens_and_without_time_nothing_is_judged(faulty: FaultyServer) -> None:
    result = billing_line(faulty, Fault(change_response=without_cached_tokens))
    assert result.outcome is CheckOutcome.NOT_APPLICABLE
    assert "neither" in result.message


@pytest.mark.long
def test_latency_shows_that_the_line_breaks_the_prefix(faulty: FaultyServer) -> None:
    delay = cache_by(lambda request: json.dumps(request.json["system"]))
    assert (
        billing_line(faulty, Fault(change_response=without_cached_tokens, delay=delay)).outcome
        is CheckOutcome.FAIL
    )


def test_latency_shows_that_the_line_is_removed(faulty: FaultyServer) -> None:
    delay = cache_by(lambda request: request.json["system"][1]["text"])
    assert (
        billing_line(faulty, Fault(change_response=without_cached_tokens, delay=delay)).outcome
        is CheckOutcome.PASS
    )


def after_hanging_up(faulty: FaultyServer, seconds: float) -> CheckResult:
    """Return the result for a server without metrics whose next response takes this long."""
    target, given_up = discovered(faulty), list[bool]()

    def delay(request: AsgiRequest) -> float:
        late = bool(given_up)
        given_up.extend([True] if b"one thousand" in request.body else [])
        return seconds if late else 0.0

    away = respond_when(lambda request: request.path == "/metrics", 404)
    faulty.layer.fault = Fault(respond=away.respond, delay=delay, ignore_disconnect=True)
    checks = select_checks(BLACK_BOX_CHECKS, ["transport.hang_up"])
    return asyncio.run(run_checks(target, checks, lambda check, result: None))[0]


@pytest.mark.long
def test_without_metrics_the_next_request_shows_whether_the_slot_is_free(
    faulty: FaultyServer,
) -> None:
    assert after_hanging_up(faulty, 0.0).outcome is CheckOutcome.PASS
    assert after_hanging_up(faulty, 6.0).outcome is CheckOutcome.FAIL
