"""Measure a run from the exchanges between the harness and the endpoint.

Counts of cached tokens are those of the endpoint. If the endpoint is Dovetail, its debug headers
report how each prompt continues the earlier ones of its session.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from dovetail.compare.differences import SessionRequest, normalize
from dovetail.engines.openai.errors import parse_rejection
from dovetail.http.diagnostics import DIAGNOSTICS_HEADER
from dovetail.watch.decoder import DecodedExchange, decode_exchange
from dovetail.watch.exchange import CapturedExchange
from dovetail_model import (
    InvalidRequest,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    Usage,
)

#: What harnesses write into tool results that they truncate.
_TRUNCATION_MARKERS = re.compile(
    r"…\d+ (?:tokens|chars) truncated…"  # Codex
    r"|^Warning: truncated output \(original token count: \d+\)"  # Codex
    r"|\[\d+ (?:lines|characters|chars) truncated\]"  # Claude Code, the built-in agent
    r"|<persisted-output>|Output too large"  # Claude Code
    r"|PARTIAL view|file content truncated"  # Claude Code
    r"|\[Showing (?:lines|last) [^\]]*Full output:"  # Pi
    r"|(?:output|result)s? (?:was |were )?truncated",  # OpenCode
    re.MULTILINE,
)
_DIAGNOSTICS_COMMENT = re.compile(rb"(?m)^: %b: ([^\r\n]*)" % DIAGNOSTICS_HEADER.encode())
_PREFIX_TOTAL = "x-dovetail-prefix-total"
_PREFIX_NEW = "x-dovetail-prefix-again"
_PREFIX_REASON = "x-dovetail-prefix-reason"


@dataclass(frozen=True)
class RunMeasures:
    """The counts of a run, named like those of `RunRecord`."""

    turns: int
    tool_calls: dict[str, int]
    prompt_tokens: int | None
    new_tokens: int | None
    cached_tokens: int | None
    re_prefilled_tokens: int | None
    output_tokens: int | None
    reasoning_tokens: int | None
    ttft_seconds: tuple[float, ...]
    truncated_outputs: int
    diagnostics: dict[str, int]


def decode_exchanges(captured: Iterable[CapturedExchange]) -> list[DecodedExchange]:
    """Decode the exchanges in the order of their start, without those that cannot be decoded."""
    decoded = []
    for exchange in sorted(captured, key=lambda one: one.began):
        try:
            decoded.append(decode_exchange(exchange))
        except InvalidRequest:
            continue
    return decoded


def select_session(exchanges: Sequence[DecodedExchange]) -> list[DecodedExchange]:
    """Return the exchanges of the conversation, without side requests such as titles.

    Harnesses send tools with all requests of a conversation, and none with a side request.
    """
    with_tools = [one for one in exchanges if one.request.tools]
    return with_tools or list(exchanges)


def measure_run(exchanges: Sequence[DecodedExchange]) -> RunMeasures:
    """Sum up the exchanges of a run with a response of the endpoint."""
    responded = [one for one in exchanges if not one.exchange.has_failed]
    usages = [one.response.usage for one in responded]
    known = [usage for usage in usages if usage is not None]
    complete = len(known) == len(usages) and bool(known)
    cached = sum(usage.cached_tokens for usage in known) if complete else None
    new = _count_new_tokens(responded) if complete else None
    return RunMeasures(
        turns=len(select_session(responded)),
        tool_calls=_count_calls(responded),
        prompt_tokens=sum(usage.input_tokens for usage in known) if complete else None,
        new_tokens=None if new is None else sum(new),
        cached_tokens=cached or None,  # Dovetail reports 0 if its engine does not report them
        re_prefilled_tokens=_sum_re_prefilled(known, new) if cached and new is not None else None,
        output_tokens=sum(usage.output_tokens for usage in known) if complete else None,
        reasoning_tokens=_sum_reasoning(responded, known) if complete else None,
        ttft_seconds=tuple(
            max(0.0, one.response.first_token - one.exchange.request_received)
            for one in responded
            if one.response.first_token is not None
        ),
        truncated_outputs=_count_truncated(responded),
        diagnostics=_count_diagnostics(responded),
    )


def describe_failure(exchanges: Sequence[DecodedExchange]) -> str | None:
    """Return why the endpoint failed, if the conversation ended with its failure."""
    session = select_session(exchanges)
    if not session:
        return "the endpoint received no request of the harness"
    last = session[-1].exchange
    if last.status == 0:
        return "the endpoint closed the connection without a response"
    never_responded = all(one.exchange.has_failed for one in session)
    if last.status >= 500 or last.status in (401, 403, 404, 429) or never_responded:
        return _describe_rejection(last)
    if last.has_failed:  # such as a prompt that is too long: part of the agent's behavior
        return None
    if last.truncated:
        return "the endpoint closed the connection during a response"
    failure = session[-1].response.message.failure
    return f"the endpoint reported: {failure.message}" if failure is not None else None


def _describe_rejection(exchange: CapturedExchange) -> str:
    """Return the status and the reason, but none for an invalid key: some servers quote the key."""
    text = f"the endpoint returned HTTP {exchange.status}"
    if exchange.status in (401, 403):
        return text
    return f"{text}: {parse_rejection(exchange.status, exchange.response).message}"


def to_session_requests(
    exchanges: Sequence[DecodedExchange], paths: Mapping[str, str]
) -> list[SessionRequest]:
    """Return the requests of the conversation, in the form in which two runs are compared."""
    responded = [one for one in exchanges if not one.exchange.has_failed]
    return [
        SessionRequest(
            normalize(_decode_body(one.exchange.request), paths),
            normalize(_describe_output(one), paths, top=False),
        )
        for one in select_session(responded)
    ]


def _decode_body(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError):
        return None


def _describe_output(one: DecodedExchange) -> list[list[str]]:
    """Return what the model generated, without ids."""
    found: list[list[str]] = []
    for block in one.response.message.blocks:
        match block:
            case TextBlock(text=text):
                found.append(["text", text])
            case ReasoningBlock(text=text):
                found.append(["reasoning", text])
            case ToolCallBlock(name=name, arguments=arguments):
                found.append(["call", name, arguments])
    return found


def _count_calls(exchanges: Iterable[DecodedExchange]) -> dict[str, int]:
    blocks = (block for one in exchanges for block in one.response.message.blocks)
    return dict(Counter(block.name for block in blocks if isinstance(block, ToolCallBlock)))


def _count_new_tokens(exchanges: Sequence[DecodedExchange]) -> list[int] | None:
    """Return the tokens of each prompt that no earlier prompt or response of the run contained.

    None if a response has no prefix report of Dovetail.
    """
    counts: list[int] = []
    longest = 0
    for one in exchanges:
        headers = one.exchange.response_headers
        if _PREFIX_TOTAL not in headers:
            return None
        tokens, reason = int(headers[_PREFIX_TOTAL]), headers.get(_PREFIX_REASON)
        if reason is None and _PREFIX_NEW in headers:
            counts.append(int(headers[_PREFIX_NEW]))
        else:
            counts.append(tokens if reason == "first" else max(0, tokens - longest))
        longest = max(longest, (one.response.usage or Usage()).total_tokens)
    return counts


def _sum_re_prefilled(usages: Sequence[Usage], new_tokens: Sequence[int]) -> int:
    """Return the prompt tokens that were neither cached nor new."""
    return sum(
        max(0, usage.input_tokens - usage.cached_tokens - new)
        for usage, new in zip(usages, new_tokens, strict=True)
    )


def _sum_reasoning(exchanges: Sequence[DecodedExchange], usages: Sequence[Usage]) -> int | None:
    """Return the reasoning tokens; None if the model reasoned, but the API does not count it."""
    total = sum(usage.reasoning_tokens for usage in usages)
    blocks = (block for one in exchanges for block in one.response.message.blocks)
    if not total and any(isinstance(block, ReasoningBlock) for block in blocks):
        return None
    return total


def _count_truncated(exchanges: Iterable[DecodedExchange]) -> int:
    """Count the tool results with a truncation marker, each once by the id of its call."""
    found: set[str] = set()
    for one in exchanges:
        for turn in one.request.turns:
            for block in turn.blocks:
                if isinstance(block, ToolResultBlock) and block.call_id not in found:
                    texts = (inner.text for inner in block.blocks if isinstance(inner, TextBlock))
                    if any(_TRUNCATION_MARKERS.search(text) for text in texts):
                        found.add(block.call_id)
    return len(found)


def _count_diagnostics(exchanges: Iterable[DecodedExchange]) -> dict[str, int]:
    """Count the codes that Dovetail reports in a header and in comments of the stream."""
    counts: Counter[str] = Counter()
    for one in exchanges:
        header = one.exchange.response_headers.get(DIAGNOSTICS_HEADER, "")
        comments = _DIAGNOSTICS_COMMENT.findall(one.exchange.response)
        for codes in (header, *(comment.decode("latin-1") for comment in comments)):
            counts.update(code.strip() for code in codes.split(",") if code.strip())
    return dict(sorted(counts.items()))
