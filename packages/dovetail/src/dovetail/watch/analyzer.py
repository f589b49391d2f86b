"""Looks at exchanges one after the other and says what each cost, and why."""

import asyncio
from array import array
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from dovetail.pipeline.preparation import PreparedRequest
from dovetail.prompt.prefix_diagnostics import PrefixReport
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

_MIN_REPORTED_TOKENS = 16  # tokens that sessions could share and do not


@dataclass(frozen=True)
class _ModelPrompts:
    """A model, and its prompts made in both ways."""

    reference: ReferenceModel
    baseline: BaselinePrompts
    dovetail: DovetailPrompts


@dataclass(frozen=True)
class _PromptPair:
    """One request as both prompts, and how sure its numbers are."""

    baseline: BaselinePrompt
    prepared: PreparedRequest
    basis: TokenBasis
    scale: float
    findings: tuple[TrafficFinding, ...]
    is_certain: bool


class ExchangeAnalyzer:
    """Everything that was learned so far. Not for use by several threads."""

    def __init__(self, lenses: ReferenceModels) -> None:
        self._references = lenses
        self._model_prompts: dict[int, _ModelPrompts] = {}
        self._sessions = SessionTracker()
        self._memory = DecodeCache(64 << 20)
        self._classifier = PrefixBreakClassifier()
        self._last_first_request: Request | None = None  # the last request that began a session
        self._loop = asyncio.new_event_loop()

    def close(self) -> None:
        for bench in self._model_prompts.values():
            self._run(bench.dovetail.close())
        self._loop.close()

    def analyze(self, exchange: CapturedExchange) -> ExchangeAnalysis:
        """What there is to say of an exchange. Exchanges come in the order of their ends."""
        try:
            heard = decode_exchange(exchange, self._memory)
        except InvalidRequest as error:
            return _undecodable(exchange, str(error))
        request = order_turns(heard.request)
        session = self._sessions.get(request)
        request = with_session(request, session.name)
        before = session.find_predecessor(request)
        verdict, sure = self._analyze_decoded(heard, session, request, before)
        complete = min(heard.response.call_times, default=None)
        at = None if complete is None else exchange.began + complete
        if exchange.has_failed:
            return verdict
        over = build_past_exchange(
            request, _response_turn(heard), at, is_certain=sure, body_bytes=len(exchange.request)
        )
        self._sessions.add_exchange(session, over)
        return verdict

    def _analyze_decoded(
        self,
        heard: DecodedExchange,
        session: ObservedSession,
        request: Request,
        before: PastExchange | None,
    ) -> tuple[ExchangeAnalysis, bool]:
        """The verdict, and whether the answer's tokens are known."""
        bench = self._prompts_for(heard.request.model)
        findings = [*find_unparsed_calls(heard.response.message, request, bench.reference)]
        copy = _returned_turn(before, request)
        if before is not None and before.response is not None and copy is not None:
            fault = find_copy_difference(before.response, copy)
            findings += [] if fault is None else [fault]
        plain = self._analysis_builder(heard, session, request, before)
        if heard.exchange.has_failed:
            return plain(), False
        try:
            pair = self._build_pair(bench, heard, request, before)
        except (DovetailError, RenderError) as error:
            unread = f"prompts cannot be compared: {error}"
            return plain(unread=unread, findings=tuple(findings)), False
        served = _to_prompt_prefix(pair.baseline.diagnosis, pair.scale)
        exact = _to_prompt_prefix(pair.prepared.diagnosis, pair.scale)
        broke = self._find_prefix_break(pair, before)
        if broke is not None:
            findings = [one for one in findings if one.code != broke.code]
        verdict = plain(
            basis=pair.basis,
            served=served,
            exact=exact,
            needless=max(0, served.prefill_tokens - exact.prefill_tokens)
            if broke is not None
            else 0,
            broke=broke,
            findings=(*findings, *pair.findings),
        )
        return verdict, pair.is_certain

    def _analysis_builder(
        self,
        heard: DecodedExchange,
        session: ObservedSession,
        request: Request,
        before: PastExchange | None,
    ) -> Callable[..., ExchangeAnalysis]:
        """A verdict with all that can be said without a prompt."""
        exchange, answer = heard.exchange, heard.response
        blocks = answer.message.blocks
        gap = None
        if (
            before is not None
            and before.call_completed_at is not None
            and _returned_turn(before, request)
        ):
            gap = max(0.0, exchange.began - before.call_completed_at)
        fields = {
            **_exchange_fields(exchange),
            "session": session.label,
            "place": session.request_count,
            "model": heard.request.model,
            "first": answer.first_token,
            "prompt_tokens": answer.usage.input_tokens if answer.usage else None,
            "output_tokens": answer.usage.output_tokens if answer.usage else None,
            "cached": answer.cached_tokens,
            "thought": any(isinstance(b, ReasoningBlock) and b.text for b in blocks),
            "calls": sum(isinstance(b, ToolCallBlock) for b in blocks),
            "dispatch": tuple(exchange.ended - at for at in answer.call_times)
            if exchange.is_streamed
            else (),
            "tool_gap": gap,
        }
        return lambda **more: ExchangeAnalysis(**{**fields, **more})

    def _build_pair(
        self,
        bench: _ModelPrompts,
        heard: DecodedExchange,
        request: Request,
        before: PastExchange | None,
    ) -> _PromptPair:
        """The request as a plain server's prompt and as Dovetail's, and the answer recorded."""
        ids, basis, findings = self._reconstruct_prompt(bench, heard, request)
        copy = _returned_turn(before, request)
        dropped = (
            before is not None
            and copy is not None
            and any(isinstance(block, ReasoningBlock) for block in copy.blocks)
            and bench.baseline.drops_reasoning(request, len(before.request.turns))
        )
        name = request.identity.session or ""
        prepared = self._run(bench.dovetail.prepare(with_session(heard.request, name)))
        natural = bench.baseline.examine(request, ids, name, dropped)
        sure = self._record_response(bench, heard, natural, prepared)
        told = heard.response.usage.input_tokens if heard.response.usage else 0
        if heard.exchange.server == "dovetail" and bench.reference.has_tokenizer:
            basis = "confirmed" if told == len(prepared.prompt.ids) else "estimated"
        if before is not None and not before.is_certain:
            basis = "estimated"
        scale = 1.0
        if not bench.reference.has_tokenizer:
            scale = told / len(ids) if told and len(ids) else 1 / BYTES_PER_TOKEN
        return _PromptPair(natural, prepared, basis, scale, findings, sure)

    def _reconstruct_prompt(
        self, bench: _ModelPrompts, heard: DecodedExchange, request: Request
    ) -> tuple["array[int]", TokenBasis, tuple[TrafficFinding, ...]]:
        """The prompt that the server made, as far as its own count bears it out."""
        ids = bench.baseline.render(request)
        answer = heard.response
        if not bench.reference.has_tokenizer:
            return ids, "estimated", ()
        if answer.prompt_ids is not None:
            return array(ids.typecode, answer.prompt_ids), "confirmed", ()
        if answer.usage is None or heard.exchange.server == "dovetail":
            return ids, "counted", ()
        told = answer.usage.input_tokens
        if len(ids) == told:
            return ids, "confirmed", ()
        bare = bench.baseline.render(strip_reasoning(request))
        if len(bare) == told:
            return bare, "confirmed", (TrafficFinding("thoughts_not_read"),)
        return ids, "estimated", ()

    def _record_response(
        self,
        bench: _ModelPrompts,
        heard: DecodedExchange,
        natural: BaselinePrompt,
        prepared: PreparedRequest,
    ) -> bool:
        """Keeps the answer. Whether its tokens are known, by the server's own word."""
        said = _response_turn(heard)
        if said is None:
            return True
        ids, sure = self._reconstruct_output(bench, heard, natural, prepared, said)
        if ids is None:
            return False
        bench.baseline.record_response(natural, said, ids)
        return self._run(bench.dovetail.record_response(prepared, said, ids)) and sure

    def _reconstruct_output(
        self,
        bench: _ModelPrompts,
        heard: DecodedExchange,
        natural: BaselinePrompt,
        prepared: PreparedRequest,
        said: Turn,
    ) -> tuple[Sequence[int] | None, bool]:
        """The tokens of an answer, and whether they are as many as the server counted."""
        answer = heard.response
        if answer.output_ids is not None and bench.reference.has_tokenizer:
            return _strip_stop_token(answer.output_ids, bench.reference.model.stop_ids), True
        told = answer.usage.output_tokens if answer.usage is not None else 0
        forms = [
            bench.dovetail.encode_response(said, heard.request, prepared.prompt.ids),
            bench.baseline.encode_response(natural.request, said, natural.ids),
        ]
        written = [form for form in forms if form is not None]
        # Servers count the token that ends a turn, as a rule; a turn that was cut has none.
        sizes = (told - 1, told) if answer.message.finish != "length" else (told,)
        fitting = [form for size in sizes for form in written if told and len(form) == size]
        return next(iter([*fitting, *written]), None), bool(fitting)

    def _find_prefix_break(
        self, pair: _PromptPair, before: PastExchange | None
    ) -> TrafficFinding | None:
        request, diagnosis = pair.baseline.request, pair.baseline.diagnosis
        if diagnosis.reason == "first":
            return self._find_session_break(pair)
        if before is None:
            return None
        return self._classifier.classify(diagnosis, before.request, before.response, request)

    def _find_session_break(self, pair: _PromptPair) -> TrafficFinding | None:
        """Why a session's first prompt shares less with others than it could."""
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
        lens = self._references.get(name)
        bench = self._model_prompts.get(id(lens))
        if bench is None:
            made = (BaselinePrompts(lens.model), DovetailPrompts(lens.model))
            bench = self._model_prompts[id(lens)] = _ModelPrompts(lens, *made)
        return bench

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)


def _to_prompt_prefix(diagnosis: PrefixReport, scale: float) -> PromptPrefix:
    kept = diagnosis.shared_tokens if diagnosis.reason == "first" else diagnosis.common_tokens
    return PromptPrefix(round(diagnosis.total_tokens * scale), round(kept * scale))


def _response_turn(heard: DecodedExchange) -> Turn | None:
    """What the client was shown, if it is whole."""
    message = heard.response.message
    if message.failure is not None or not message.blocks:
        return None
    return Turn("assistant", message.blocks)


def _returned_turn(before: PastExchange | None, now: Request) -> Turn | None:
    """The client's copy of what was answered before."""
    if before is None or before.response is None:
        return None
    at = len(before.request.turns)
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
        "cut": exchange.cut,
        "fixed": exchange.server == "dovetail",
    }


def _undecodable(exchange: CapturedExchange, reason: str) -> ExchangeAnalysis:
    blank = {"session": "-", "place": 0, "model": "", "unread": f"not understood: {reason}"}
    return ExchangeAnalysis(**{**_exchange_fields(exchange), **blank})  # type: ignore[arg-type]
