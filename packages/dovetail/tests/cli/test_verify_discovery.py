"""Discovery of a server's features by `dovetail verify`, and checks that depend on them."""

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
COLD = 0.5  # seconds for a prompt that is not in the cache


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


def test_discovers_the_first_model_its_context_length_and_the_apis(faulty: FaultyServer) -> None:
    target = discovered(faulty)
    assert target.model == faulty.model
    assert target.context_length == 65536
    assert target.missing_apis == {}
    assert target.features == set()


def test_discovers_the_context_length_of_llamacpp(faulty: FaultyServer) -> None:
    props = make_response(200, '{"default_generation_settings":{"n_ctx":2048}}')
    entries = listing({"id": faulty.model})
    faulty.layer.fault = Fault(respond=lambda a: props if a.path == "/props" else entries(a))
    assert discovered(faulty).context_length == 2048


def test_context_length_is_none_if_the_server_does_not_report_it(faulty: FaultyServer) -> None:
    faulty.layer.fault = Fault(respond=listing({"id": faulty.model}))
    assert discovered(faulty).context_length is None


def test_server_without_a_model_list_requires_a_model_name(faulty: FaultyServer) -> None:
    faulty.layer.fault = Fault(respond=listing({}))
    with pytest.raises(TargetUnusable, match="--model"):
        discovered(faulty)
    assert discovered(faulty, faulty.model).model == faulty.model


def test_server_without_any_api_is_unusable(faulty: FaultyServer) -> None:
    faulty.layer.fault = respond_when(lambda request: request.method == "POST", 404)
    with pytest.raises(TargetUnusable, match="none of the three APIs"):
        discovered(faulty)


def is_listing(request: AsgiRequest) -> bool:
    return request.path == "/v1/models"


def is_post(request: AsgiRequest) -> bool:
    return request.method == "POST"


def is_generation(request: AsgiRequest) -> bool:
    """Whether the request generates output. The probe for an API sends an empty request."""
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
def test_server_without_output_is_reported_once(
    faulty: FaultyServer, fault: Fault, key: str | None, expected: str
) -> None:
    faulty.layer.fault = fault
    with pytest.raises(TargetUnusable, match=re.escape(expected)):
        asyncio.run(
            discover_target(TargetServer(Endpoint.parse(faulty.url), "", api_key=key, timeout=30))
        )


def test_one_working_api_is_enough_to_run_the_checks(faulty: FaultyServer) -> None:
    faulty.layer.fault = respond_when(
        lambda request: is_generation(request) and "chat" not in request.path, 401
    )
    assert discovered(faulty).missing_apis == {}


def test_api_key_in_a_response_is_redacted(faulty: FaultyServer) -> None:
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
    """Remove cached tokens from the usage."""
    body = re.sub(
        rb'"cache_read_input_tokens":[0-9]+', b'"cache_read_input_tokens":0', response.body
    )
    return replace(response, body=body)


def cache_by(part: Callable[[AsgiRequest], str]) -> Callable[[AsgiRequest], float]:
    """Return a delay for prompts, unless this part of the prompt was sent before."""
    seen: set[str] = set()

    def delay(request: AsgiRequest) -> float:
        known = part(request) in seen
        seen.add(part(request))
        return 0.0 if known else COLD

    return delay


def is_first_line(request: AsgiRequest) -> bool:
    return "a1" in request.json["system"][0]["text"]


def is_stream(request: AsgiRequest) -> bool:
    return bool(request.json.get("stream"))


def test_cache_check_does_not_apply_without_cached_tokens_and_latency(faulty: FaultyServer) -> None:
    fault = Fault(change_response=without_cached_tokens, delay=lambda request: 0.2)
    result = billing_line(faulty, fault)
    assert result.outcome is CheckOutcome.NOT_APPLICABLE
    assert "neither" in result.message


def test_few_delays_do_not_look_like_a_prefix_cache(faulty: FaultyServer) -> None:
    """A busy machine delays two of the three prompts that are sent for the first time."""
    delayed = cache_by(lambda request: json.dumps(request.json["system"]))
    cold = [0.0, 1.0, 1.0]

    def delay(request: AsgiRequest) -> float:
        is_streamed_first = delayed(request) > 0 and is_first_line(request) and is_stream(request)
        return 0.2 + (cold.pop(0) if is_streamed_first else 0.0)

    fault = Fault(change_response=without_cached_tokens, delay=delay)
    assert billing_line(faulty, fault).outcome is CheckOutcome.NOT_APPLICABLE
    assert not cold


@pytest.mark.long
def test_latency_shows_a_broken_prefix(faulty: FaultyServer) -> None:
    delay = cache_by(lambda request: json.dumps(request.json["system"]))
    assert (
        billing_line(faulty, Fault(change_response=without_cached_tokens, delay=delay)).outcome
        is CheckOutcome.FAIL
    )


def test_latency_shows_an_intact_prefix(faulty: FaultyServer) -> None:
    delay = cache_by(lambda request: request.json["system"][1]["text"])
    assert (
        billing_line(faulty, Fault(change_response=without_cached_tokens, delay=delay)).outcome
        is CheckOutcome.PASS
    )


def result_after_disconnect(faulty: FaultyServer, seconds: float) -> CheckResult:
    """Return the result for a server without metrics whose next response takes `seconds`."""
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
def test_disconnect_check_measures_the_next_request_without_metrics(
    faulty: FaultyServer,
) -> None:
    assert result_after_disconnect(faulty, 0.0).outcome is CheckOutcome.PASS
    assert result_after_disconnect(faulty, 6.0).outcome is CheckOutcome.FAIL
