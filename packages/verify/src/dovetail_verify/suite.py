"""The suite: discover the features of a server, select checks, and run them."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import Any

from dovetail_verify import scripted
from dovetail_verify.black_box import (
    chat,
    context,
    conversations,
    errors,
    fields,
    messages_requests,
    messages_stream,
    metadata,
    output,
    responses_requests,
    responses_stream,
    server_tools,
    transport,
    usage,
)
from dovetail_verify.black_box.errors import refusal_reason
from dovetail_verify.black_box.samples import QUESTION
from dovetail_verify.check import Check, CheckFailed, CheckOutcome, CheckResult, NotApplicable
from dovetail_verify.dialects import DIALECTS
from dovetail_verify.exchange import HttpExchange
from dovetail_verify.http_client import TargetUnreachable
from dovetail_verify.target import TargetServer

_CONTEXT_LENGTH_FIELDS = ("max_model_len", "context_length", "context_window", "max_input_tokens")
_NOT_SERVED_STATUSES = (404, 405, 501)
_UNAUTHORIZED_STATUSES = (401, 403)


class TargetUnusable(Exception):
    """The server cannot be checked; the message states the reason."""


async def discover_target(target: TargetServer) -> None:
    """Find the model, the context length and the APIs of a target.

    Raises `TargetUnusable` if the server lists no model, or if the model does not respond.
    """
    listing = await target.request("GET", "/v1/models")
    entries = _model_entries(listing)
    if not target.model:
        if not entries:
            raise TargetUnusable(_no_models_message(target, listing))
        target.model = str(entries[0].get("id"))
    chosen = next((entry for entry in entries if entry.get("id") == target.model), {})
    target.context_length = await _find_context_length(target, chosen)
    if target.api_key is not None:
        target.features.add("an API key")
    await _probe_apis(target)
    await _probe_generation(target)


def _model_entries(exchange: HttpExchange) -> list[dict[str, Any]]:
    try:
        data = exchange.json["data"]
    except (CheckFailed, KeyError, TypeError):
        return []
    return [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []


async def _find_context_length(target: TargetServer, entry: dict[str, Any]) -> int | None:
    """Return the context length from any of the fields that servers use for it."""
    found = [entry.get(name) for name in _CONTEXT_LENGTH_FIELDS]
    for value in found:
        if isinstance(value, int) and value > 0:
            return value
    props = await target.request("GET", "/props")  # where llama.cpp reports it
    try:
        value = props.json["default_generation_settings"]["n_ctx"]
    except (CheckFailed, KeyError, TypeError):
        return None
    return value if isinstance(value, int) and value > 0 else None


async def _probe_apis(target: TargetServer) -> None:
    """Send each API an empty request, which an API that is served rejects as invalid."""
    for dialect in DIALECTS:
        exchange = await target.post(dialect.path, {})
        if exchange.status in _NOT_SERVED_STATUSES:
            target.missing_apis[dialect.api] = f"POST {dialect.path} returned {exchange.status}"
    if len(target.missing_apis) == len(DIALECTS):
        raise TargetUnusable("the server has none of the three APIs; check the URL")


async def _probe_generation(target: TargetServer) -> None:
    """Require that one API generates output; otherwise every check would fail for one reason."""
    refusals = []
    for dialect in DIALECTS:
        if dialect.api not in target.missing_apis:
            body = dialect.body(target.model, [QUESTION], max_tokens=16)
            exchange = await target.post(dialect.path, body)
            if exchange.status == 200:
                return
            refusals.append(exchange)
    first = refusals[0]
    if all(exchange.status in _UNAUTHORIZED_STATUSES for exchange in refusals):
        raise TargetUnusable(_unauthorized_message(target, first))
    reason = f"POST {first.request.path} returned status {first.status}{_error_suffix(first)}"
    raise TargetUnusable(f"the model {target.model} does not respond: {reason}")


def _no_models_message(target: TargetServer, listing: HttpExchange) -> str:
    if listing.status in _UNAUTHORIZED_STATUSES:
        return _unauthorized_message(target, listing)
    status = f" (GET /v1/models returned status {listing.status})"
    suffix = "" if listing.status == 200 else status
    return f"the server lists no models{suffix}; name one with --model, or check the URL"


def _unauthorized_message(target: TargetServer, exchange: HttpExchange) -> str:
    problem = "requires an API key" if target.api_key is None else "rejects the API key"
    return f"the server {problem} (status {exchange.status}); set --api-key"


def _error_suffix(exchange: HttpExchange) -> str:
    try:
        return f", {refusal_reason(exchange)}"
    except CheckFailed:
        return ""


_MAX_SILENT_CHECKS = 3  # consecutive, of one API: the others would time out as well
_CONCLUSIVE_OUTCOMES = (CheckOutcome.PASS, CheckOutcome.FAIL)
#: Called before each check, without a result, and after it, with the result.
ProgressCallback = Callable[[Check, CheckResult | None], None]


async def run_checks(
    target: TargetServer, checks: Iterable[Check], progress: ProgressCallback
) -> list[CheckResult]:
    """Run checks and return their results, in order.

    If an API does not respond, its remaining checks are skipped: each would wait for the timeout.
    """
    results, silent = [], Counter[str]()
    for check in checks:
        progress(check, None)
        if silent[check.api] == _MAX_SILENT_CHECKS:
            message = (
                f"skipped: {_MAX_SILENT_CHECKS} consecutive checks of this API got no response"
            )
            result = CheckResult(check, CheckOutcome.ERROR, message)
        else:
            result = await run_check(target, check)
            silent[check.api] += result.seconds >= target.timeout
            silent[check.api] *= result.outcome not in _CONCLUSIVE_OUTCOMES
        progress(check, result)
        results.append(result)
    return results


async def run_check(target: TargetServer, check: Check) -> CheckResult:
    """Run one check. Every failure becomes a result; none is raised."""
    started_at = asyncio.get_running_loop().time()
    target.exchanges.clear()
    outcome, message, sent, received = await _evaluate(target, check)
    last_sent, last_came = target.last_evidence()
    sent, received = sent or last_sent, received or last_came
    seconds = asyncio.get_running_loop().time() - started_at
    message, sent, received = (_redact_key(target, text) for text in (message, sent, received))
    return CheckResult(check, outcome, message, sent, received, seconds)


def _redact_key(target: TargetServer, text: str) -> str:
    """Remove the API key, which some servers echo: reports are shared with others."""
    return text.replace(target.api_key, "(API key)") if target.api_key else text


async def _evaluate(target: TargetServer, check: Check) -> tuple[CheckOutcome, str, str, str]:
    try:
        target.require_api(check.api)
        lacking = sorted(check.requires - target.features)
        if lacking:
            raise NotApplicable(f"requires {', '.join(lacking)}")
        return CheckOutcome.PASS, await check.run(target), "", ""
    except CheckFailed as error:
        return CheckOutcome.FAIL, str(error), error.sent, error.received
    except NotApplicable as reason:
        return CheckOutcome.NOT_APPLICABLE, str(reason), "", ""
    except TargetUnreachable as error:  # no response, an invalid one, or a timeout
        return CheckOutcome.ERROR, str(error), "", ""
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        # The server fails a check if the check cannot read the structure of its response.
        return CheckOutcome.FAIL, f"the response has an unexpected structure ({error!r})", "", ""


#: The APIs in the order of a report. All harnesses use the last three.
APIS = ("messages", "responses", "chat", "models", "tokens", "transport")


def _sort_by_api(checks: Iterable[Check]) -> tuple[Check, ...]:
    return tuple(sorted(checks, key=lambda check: APIS.index(check.api)))


#: Checks that apply to any server with any model.
BLACK_BOX_CHECKS = _sort_by_api(
    (
        *metadata.CHECKS,
        *messages_stream.CHECKS,
        *responses_stream.CHECKS,
        *chat.CHECKS,
        *output.CHECKS,
        *messages_requests.CHECKS,
        *responses_requests.CHECKS,
        *output.STRUCTURED_CHECKS,
        *fields.CHECKS,
        *context.CHECKS,
        *conversations.CHECKS,
        *server_tools.CHECKS,
        *usage.CHECKS,
        *messages_requests.BILLING_CHECKS,
        *errors.CHECKS,
        *transport.CHECKS,
    )
)

#: Checks of a server in front of the scripted engine.
SCRIPTED_CHECKS = _sort_by_api(scripted.CHECKS)


def select_checks(checks: Iterable[Check], patterns: Iterable[str]) -> list[Check]:
    """Return the checks whose id or clause matches a pattern (`messages.*`, `CC-4`), or all checks.

    A pattern without a star also matches all ids below it, such as `messages.stream`.
    """
    wanted = [pattern.strip() for pattern in patterns if pattern.strip()]
    return [check for check in checks if not wanted or any(_matches(check, p) for p in wanted)]


def _matches(check: Check, pattern: str) -> bool:
    if pattern.lower() == check.clause.id.lower():
        return True
    return fnmatchcase(check.id, pattern) or check.id.startswith(f"{pattern}.")
