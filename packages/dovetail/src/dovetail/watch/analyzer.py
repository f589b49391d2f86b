"""Analyze exchanges in order: the re-prefilled tokens of each, and the cause."""

import asyncio
from array import array
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from dovetail.pipeline.preparation import PreparedRequest
from dovetail.prompt.prefix_report import PrefixReport
from dovetail.prompt.template import RenderError
from dovetail.prompt.turn_order import order_turns
from dovetail.watch.analysis import ExchangeAnalysis, PromptPrefix, TokenBasis, TrafficFinding
from dovetail.watch.decoder import DecodedExchange, decode_exchange
from dovetail.watch.exchange import CapturedExchange
from dovetail.watch.findings import PrefixBreakClassifier, find_copy_difference, find_unparsed_calls
from dovetail.watch.prompts import BaselinePrompt, BaselinePrompts, DovetailPrompts, strip_reasoning
from dovetail.watch.reference_model import BYTES_PER_TOKEN, ReferenceModel, ReferenceModels
from dovetail.watch.sessions import (
    ObservedSession,
    PastExchange,
    SessionTracker,
    build_past_exchange,
    with_session,
)
from dovetail_model import (
    DovetailError,
    InvalidRequest,
    ReasoningBlock,
    Request,
    ToolCallBlock,
    Turn,
)
from dovetail_protocols import DecodeCache

T = TypeVar("T")

_MIN_REPORTED_TOKENS = 16  # minimum of tokens that sessions could share and do not


@dataclass(frozen=True)
class _ModelPrompts:
    """A model, and its prompts with and without Dovetail."""

    reference: ReferenceModel
    baseline: BaselinePrompts
    dovetail: DovetailPrompts


@dataclass(frozen=True)
class _PromptPair:
    """One request as both prompts, and how reliable its numbers are."""

    baseline: BaselinePrompt
    prepared: PreparedRequest
    basis: TokenBasis
    scale: float
    findings: tuple[TrafficFinding, ...]
    is_certain: bool


class ExchangeAnalyzer:
    """Analyzes exchanges, with the state of all sessions. Not thread-safe."""

    def __init__(self, references: ReferenceModels) -> None:
        self._references = references
        self._model_prompts: dict[int, _ModelPrompts] = {}
        self._sessions = SessionTracker()
        self._memory = DecodeCache(64 << 20)
        self._classifier = PrefixBreakClassifier()
        self._last_first_request: Request | None = None  # the last one that began a session
        self._loop = asyncio.new_event_loop()

    def close(self) -> None:
        for prompts in self._model_prompts.values():
            self._run(prompts.dovetail.close())
        self._loop.close()

    def analyze(self, exchange: CapturedExchange) -> ExchangeAnalysis:
        """Analyze an exchange. Exchanges must be passed in the order in which they ended."""
        try:
            decoded = decode_exchange(exchange, self._memory)
        except InvalidRequest as error:
            return _undecodable(exchange, str(error))
        request = order_turns(decoded.request)
        session = self._sessions.get(request)
        request = with_session(request, session.name)
        previous = session.find_predecessor(request)
        analysis, is_certain = self._analyze_decoded(decoded, session, request, previous)
        first_call = min(decoded.response.call_times, default=None)
        call_completed_at = None if first_call is None else exchange.began + first_call
        if exchange.has_failed:
            return analysis
        past = build_past_exchange(
            request,
            _response_turn(decoded),
            call_completed_at,
            is_certain=is_certain,
            body_bytes=len(exchange.request),
        )
        self._sessions.add_exchange(session, past)
        return analysis

    def _analyze_decoded(
        self,
        decoded: DecodedExchange,
        session: ObservedSession,
        request: Request,
        previous: PastExchange | None,
    ) -> tuple[ExchangeAnalysis, bool]:
        """Return the analysis, and whether the response's tokens are known."""
        prompts = self._prompts_for(decoded.request.model)
        findings = [*find_unparsed_calls(decoded.response.message, request, prompts.reference)]
        copy = _returned_turn(previous, request)
        if previous is not None and previous.response is not None and copy is not None:
            difference = find_copy_difference(previous.response, copy)
            findings += [] if difference is None else [difference]
        build = self._analysis_builder(decoded, session, request, previous)
        if decoded.exchange.has_failed:
            return build(), False
        try:
            pair = self._build_pair(prompts, decoded, request, previous)
        except (DovetailError, RenderError) as error:
            unread = f"prompts cannot be compared: {error}"
            return build(unread=unread, findings=tuple(findings)), False
        served = _to_prompt_prefix(pair.baseline.diagnosis, pair.scale)
        exact = _to_prompt_prefix(pair.prepared.diagnosis, pair.scale)
        broke = self._find_prefix_break(pair, previous)
        if broke is not None:
            findings = [one for one in findings if one.code != broke.code]
        analysis = build(
            basis=pair.basis,
            served=served,
            exact=exact,
            needless=max(0, served.prefill_tokens - exact.prefill_tokens)
            if broke is not None
            else 0,
            broke=broke,
            findings=(*findings, *pair.findings),
        )
        return analysis, pair.is_certain

    def _analysis_builder(
        self,
        decoded: DecodedExchange,
        session: ObservedSession,
        request: Request,
        previous: PastExchange | None,
    ) -> Callable[..., ExchangeAnalysis]:
        """Return a constructor of the analysis with all fields that need no prompt."""
        exchange, response = decoded.exchange, decoded.response
        blocks = response.message.blocks
        gap = None
        if (
            previous is not None
            and previous.call_completed_at is not None
            and _returned_turn(previous, request)
        ):
            gap = max(0.0, exchange.began - previous.call_completed_at)
        fields = {
            **_exchange_fields(exchange),
            "session": session.label,
            "place": session.request_count,
            "model": decoded.request.model,
            "first": response.first_token,
            "prompt_tokens": response.usage.input_tokens if response.usage else None,
            "output_tokens": response.usage.output_tokens if response.usage else None,
            "cached": response.cached_tokens,
            "has_reasoning": any(isinstance(b, ReasoningBlock) and b.text for b in blocks),
            "calls": sum(isinstance(b, ToolCallBlock) for b in blocks),
            "dispatch": tuple(exchange.ended - at for at in response.call_times)
            if exchange.is_streamed
            else (),
            "tool_gap": gap,
        }
        return lambda **more: ExchangeAnalysis(**{**fields, **more})

    def _build_pair(
        self,
        prompts: _ModelPrompts,
        decoded: DecodedExchange,
        request: Request,
        previous: PastExchange | None,
    ) -> _PromptPair:
        """Build the server's and Dovetail's prompt of the request, and record its response."""
        ids, basis, findings = self._reconstruct_prompt(prompts, decoded, request)
        copy = _returned_turn(previous, request)
        dropped = (
            previous is not None
            and copy is not None
            and any(isinstance(block, ReasoningBlock) for block in copy.blocks)
            and prompts.baseline.drops_reasoning(request, len(previous.request.turns))
        )
        session = request.identity.session or ""
        prepared = self._run(prompts.dovetail.prepare(with_session(decoded.request, session)))
        baseline = prompts.baseline.examine(request, ids, session, dropped)
        is_certain = self._record_response(prompts, decoded, baseline, prepared)
        reported_tokens = decoded.response.usage.input_tokens if decoded.response.usage else 0
        if decoded.exchange.server == "dovetail" and prompts.reference.has_tokenizer:
            basis = "confirmed" if reported_tokens == len(prepared.prompt.ids) else "estimated"
        if previous is not None and not previous.is_certain:
            basis = "estimated"
        scale = 1.0
        if not prompts.reference.has_tokenizer:
            scale = (
                reported_tokens / len(ids) if reported_tokens and len(ids) else 1 / BYTES_PER_TOKEN
            )
        return _PromptPair(baseline, prepared, basis, scale, findings, is_certain)

    def _reconstruct_prompt(
        self, prompts: _ModelPrompts, decoded: DecodedExchange, request: Request
    ) -> tuple["array[int]", TokenBasis, tuple[TrafficFinding, ...]]:
        """Reconstruct the server's prompt and compare it with the reported token count."""
        ids = prompts.baseline.render(request)
        response = decoded.response
        if not prompts.reference.has_tokenizer:
            return ids, "estimated", ()
        if response.prompt_ids is not None:
            return array(ids.typecode, response.prompt_ids), "confirmed", ()
        if response.usage is None or decoded.exchange.server == "dovetail":
            return ids, "counted", ()
        reported_tokens = response.usage.input_tokens
        if len(ids) == reported_tokens:
            return ids, "confirmed", ()
        without_reasoning = prompts.baseline.render(strip_reasoning(request))
        if len(without_reasoning) == reported_tokens:
            return without_reasoning, "confirmed", (TrafficFinding("thoughts_not_read"),)
        return ids, "estimated", ()

    def _record_response(
        self,
        prompts: _ModelPrompts,
        decoded: DecodedExchange,
        baseline: BaselinePrompt,
        prepared: PreparedRequest,
    ) -> bool:
        """Record the response. Returns whether the server's count confirms its tokens."""
        turn = _response_turn(decoded)
        if turn is None:
            return True
        ids, is_certain = self._reconstruct_output(prompts, decoded, baseline, prepared, turn)
        if ids is None:
            return False
        prompts.baseline.record_response(baseline, turn, ids)
        return self._run(prompts.dovetail.record_response(prepared, turn, ids)) and is_certain

    def _reconstruct_output(
        self,
        prompts: _ModelPrompts,
        decoded: DecodedExchange,
        baseline: BaselinePrompt,
        prepared: PreparedRequest,
        turn: Turn,
    ) -> tuple[Sequence[int] | None, bool]:
        """Reconstruct the tokens of a response. Returns whether they match the server's count."""
        response = decoded.response
        if response.output_ids is not None and prompts.reference.has_tokenizer:
            return _strip_stop_token(response.output_ids, prompts.reference.model.stop_ids), True
        reported_tokens = response.usage.output_tokens if response.usage is not None else 0
        forms = [
            prompts.dovetail.encode_response(turn, decoded.request, prepared.prompt.ids),
            prompts.baseline.encode_response(baseline.request, turn, baseline.ids),
        ]
        candidates = [form for form in forms if form is not None]
        # Servers usually count the stop token; a truncated turn has none.
        sizes = (
            (reported_tokens - 1, reported_tokens)
            if response.message.finish != "length"
            else (reported_tokens,)
        )
        matching = [
            form for size in sizes for form in candidates if reported_tokens and len(form) == size
        ]
        return next(iter([*matching, *candidates]), None), bool(matching)

    def _find_prefix_break(
        self, pair: _PromptPair, previous: PastExchange | None
    ) -> TrafficFinding | None:
        request, diagnosis = pair.baseline.request, pair.baseline.diagnosis
        if diagnosis.reason == "first":
            return self._find_session_break(pair)
        if previous is None:
            return None
        return self._classifier.classify(diagnosis, previous.request, previous.response, request)

    def _find_session_break(self, pair: _PromptPair) -> TrafficFinding | None:
        """Return why a session's first prompt shares less with other sessions than it could."""
        request, other = pair.baseline.request, self._last_first_request
        self._last_first_request = request
        gain = pair.prepared.diagnosis.shared_tokens - pair.baseline.diagnosis.shared_tokens
        if (
            other is None
            or gain * pair.scale < _MIN_REPORTED_TOKENS
            or other.system == request.system
        ):
            return None
        return self._classifier.classify_system(other.system, request.system)

    def _prompts_for(self, name: str) -> _ModelPrompts:
        reference = self._references.get(name)
        prompts = self._model_prompts.get(id(reference))
        if prompts is None:
            pair = (BaselinePrompts(reference.model), DovetailPrompts(reference.model))
            prompts = self._model_prompts[id(reference)] = _ModelPrompts(reference, *pair)
        return prompts

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)


def _to_prompt_prefix(diagnosis: PrefixReport, scale: float) -> PromptPrefix:
    reused = diagnosis.shared_tokens if diagnosis.reason == "first" else diagnosis.common_tokens
    return PromptPrefix(round(diagnosis.total_tokens * scale), round(reused * scale))


def _response_turn(decoded: DecodedExchange) -> Turn | None:
    """Return the turn that the client received, if it is complete."""
    message = decoded.response.message
    if message.failure is not None or not message.blocks:
        return None
    return Turn("assistant", message.blocks)


def _returned_turn(previous: PastExchange | None, now: Request) -> Turn | None:
    """Return the client's copy of the previous response."""
    if previous is None or previous.response is None:
        return None
    at = len(previous.request.turns)
    turn = now.turns[at] if at < len(now.turns) else None
    return turn if turn is not None and turn.role == "assistant" else None


def _strip_stop_token(ids: Sequence[int], stops: frozenset[int]) -> Sequence[int]:
    return ids[:-1] if ids and ids[-1] in stops else ids


def _exchange_fields(exchange: CapturedExchange) -> dict[str, object]:
    codec = exchange.codec
    return {
        "number": exchange.number,
        "api": codec.name if codec is not None else "",
        "status": exchange.status,
        "began": exchange.began,
        "duration": exchange.ended,
        "streamed": exchange.is_streamed,
        "truncated": exchange.truncated,
        "fixed": exchange.server == "dovetail",
    }


def _undecodable(exchange: CapturedExchange, reason: str) -> ExchangeAnalysis:
    unknown = {"session": "-", "place": 0, "model": "", "unread": f"not decodable: {reason}"}
    return ExchangeAnalysis(**{**_exchange_fields(exchange), **unknown})  # type: ignore[arg-type]
