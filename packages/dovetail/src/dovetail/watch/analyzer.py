"""Looks at exchanges one after the other and says what each cost, and why."""

import asyncio
from array import array
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from dovetail.pipeline.preparation import PreparedRequest
from dovetail.prompt.arrange import order_turns
from dovetail.prompt.diagnosis import PrefixReport
from dovetail.prompt.rendering_template import RenderError
from dovetail.watch.decoder import Heard, understand
from dovetail.watch.exchange import Exchange
from dovetail.watch.findings import Causes, copy_fault
from dovetail.watch.losses import calls_as_text
from dovetail.watch.prompts import ExactPrompts, Natural, NaturalPrompts, without_thoughts
from dovetail.watch.reference_model import BYTES_OF_A_TOKEN, Lens, Lenses
from dovetail.watch.sessions import Past, Session, Sessions, named, past
from dovetail.watch.verdict import Basis, Finding, Prefix, Verdict
from dovetail_model import (
    DovetailError,
    InvalidRequest,
    ReasoningBlock,
    Request,
    ToolCallBlock,
    Turn,
)
from dovetail_protocols import Memory

T = TypeVar("T")

_WORTH_TELLING = 16  # tokens that sessions could share and do not


@dataclass(frozen=True)
class _Bench:
    """A model, and its prompts made in both ways."""

    lens: Lens
    natural: NaturalPrompts
    exact: ExactPrompts


@dataclass(frozen=True)
class _Pair:
    """One request as both prompts, and how sure its numbers are."""

    natural: Natural
    prepared: PreparedRequest
    basis: Basis
    scale: float
    findings: tuple[Finding, ...]
    sure: bool


class Analyst:
    """Everything that was learned so far. Not for use by several threads."""

    def __init__(self, lenses: Lenses) -> None:
        self._lenses = lenses
        self._benches: dict[int, _Bench] = {}
        self._sessions = Sessions()
        self._memory = Memory(64 << 20)
        self._causes = Causes()
        self._other: Request | None = None  # the last request that began a session
        self._loop = asyncio.new_event_loop()

    def close(self) -> None:
        for bench in self._benches.values():
            self._run(bench.exact.close())
        self._loop.close()

    def look(self, exchange: Exchange) -> Verdict:
        """What there is to say of an exchange. Exchanges come in the order of their ends."""
        try:
            heard = understand(exchange, self._memory)
        except InvalidRequest as error:
            return _unread(exchange, str(error))
        request = order_turns(heard.request)
        session = self._sessions.of(request)
        request = named(request, session.name)
        before = session.before(request)
        verdict, sure = self._verdict(heard, session, request, before)
        complete = min(heard.answer.complete, default=None)
        at = None if complete is None else exchange.began + complete
        if exchange.refused:
            return verdict
        over = past(request, _said(heard), at, sure=sure, size=len(exchange.request))
        self._sessions.end(session, over)
        return verdict

    def _verdict(
        self, heard: Heard, session: Session, request: Request, before: Past | None
    ) -> tuple[Verdict, bool]:
        """The verdict, and whether the answer's tokens are known."""
        bench = self._bench(heard.request.model)
        findings = [*calls_as_text(heard.answer.message, request, bench.lens)]
        copy = _copy(before, request)
        if before is not None and before.said is not None and copy is not None:
            fault = copy_fault(before.said, copy)
            findings += [] if fault is None else [fault]
        plain = self._plain(heard, session, request, before)
        if heard.exchange.refused:
            return plain(), False
        try:
            pair = self._pair(bench, heard, request, before)
        except (DovetailError, RenderError) as error:
            unread = f"prompts cannot be compared: {error}"
            return plain(unread=unread, findings=tuple(findings)), False
        served = _prefix(pair.natural.diagnosis, pair.scale)
        exact = _prefix(pair.prepared.diagnosis, pair.scale)
        broke = self._broke(pair, before)
        if broke is not None:
            findings = [one for one in findings if one.code != broke.code]
        verdict = plain(
            basis=pair.basis,
            served=served,
            exact=exact,
            needless=max(0, served.again - exact.again) if broke is not None else 0,
            broke=broke,
            findings=(*findings, *pair.findings),
        )
        return verdict, pair.sure

    def _plain(
        self, heard: Heard, session: Session, request: Request, before: Past | None
    ) -> Callable[..., Verdict]:
        """A verdict with all that can be said without a prompt."""
        exchange, answer = heard.exchange, heard.answer
        blocks = answer.message.blocks
        gap = None
        if before is not None and before.complete is not None and _copy(before, request):
            gap = max(0.0, exchange.began - before.complete)
        fields = {
            **_outline(exchange),
            "session": session.label,
            "place": session.count,
            "model": heard.request.model,
            "first": answer.first,
            "prompt_tokens": answer.usage.input_tokens if answer.usage else None,
            "output_tokens": answer.usage.output_tokens if answer.usage else None,
            "cached": answer.cached,
            "thought": any(isinstance(b, ReasoningBlock) and b.text for b in blocks),
            "calls": sum(isinstance(b, ToolCallBlock) for b in blocks),
            "dispatch": tuple(exchange.ended - at for at in answer.complete)
            if exchange.streamed
            else (),
            "tool_gap": gap,
        }
        return lambda **more: Verdict(**{**fields, **more})

    def _pair(self, bench: _Bench, heard: Heard, request: Request, before: Past | None) -> _Pair:
        """The request as a plain server's prompt and as Dovetail's, and the answer recorded."""
        ids, basis, findings = self._as_served(bench, heard, request)
        copy = _copy(before, request)
        dropped = (
            before is not None
            and copy is not None
            and any(isinstance(block, ReasoningBlock) for block in copy.blocks)
            and bench.natural.drops(request, len(before.request.turns))
        )
        name = request.identity.session or ""
        prepared = self._run(bench.exact.prepare(named(heard.request, name)))
        natural = bench.natural.examine(request, ids, name, dropped)
        sure = self._record(bench, heard, natural, prepared)
        told = heard.answer.usage.input_tokens if heard.answer.usage else 0
        if heard.exchange.server == "dovetail" and bench.lens.real:
            basis = "confirmed" if told == len(prepared.prompt.ids) else "estimated"
        if before is not None and not before.sure:
            basis = "estimated"
        scale = 1.0
        if not bench.lens.real:
            scale = told / len(ids) if told and len(ids) else 1 / BYTES_OF_A_TOKEN
        return _Pair(natural, prepared, basis, scale, findings, sure)

    def _as_served(
        self, bench: _Bench, heard: Heard, request: Request
    ) -> tuple["array[int]", Basis, tuple[Finding, ...]]:
        """The prompt that the server made, as far as its own count bears it out."""
        ids = bench.natural.ids(request)
        answer = heard.answer
        if not bench.lens.real:
            return ids, "estimated", ()
        if answer.prompt_ids is not None:
            return array(ids.typecode, answer.prompt_ids), "confirmed", ()
        if answer.usage is None or heard.exchange.server == "dovetail":
            return ids, "counted", ()
        told = answer.usage.input_tokens
        if len(ids) == told:
            return ids, "confirmed", ()
        bare = bench.natural.ids(without_thoughts(request))
        if len(bare) == told:
            return bare, "confirmed", (Finding("thoughts_not_read"),)
        return ids, "estimated", ()

    def _record(self, bench: _Bench, heard: Heard, natural: Natural, prepared: PreparedRequest) -> bool:
        """Keeps the answer. Whether its tokens are known, by the server's own word."""
        said = _said(heard)
        if said is None:
            return True
        ids, sure = self._generated(bench, heard, natural, prepared, said)
        if ids is None:
            return False
        bench.natural.answered(natural, said, ids)
        return self._run(bench.exact.answered(prepared, said, ids)) and sure

    def _generated(
        self, bench: _Bench, heard: Heard, natural: Natural, prepared: PreparedRequest, said: Turn
    ) -> tuple[Sequence[int] | None, bool]:
        """The tokens of an answer, and whether they are as many as the server counted."""
        answer = heard.answer
        if answer.ids is not None and bench.lens.real:
            return _without_stop(answer.ids, bench.lens.model.stop_ids), True
        told = answer.usage.output_tokens if answer.usage is not None else 0
        forms = [
            bench.exact.spelled(said, heard.request, prepared.prompt.ids),
            bench.natural.spelled(natural.request, said, natural.ids),
        ]
        written = [form for form in forms if form is not None]
        # Servers count the token that ends a turn, as a rule; a turn that was cut has none.
        sizes = (told - 1, told) if answer.message.finish != "length" else (told,)
        fitting = [form for size in sizes for form in written if told and len(form) == size]
        return next(iter([*fitting, *written]), None), bool(fitting)

    def _broke(self, pair: _Pair, before: Past | None) -> Finding | None:
        request, diagnosis = pair.natural.request, pair.natural.diagnosis
        if diagnosis.reason == "first":
            return self._between_sessions(pair)
        if before is None:
            return None
        return self._causes.of(diagnosis, before.request, before.said, request)

    def _between_sessions(self, pair: _Pair) -> Finding | None:
        """Why a session's first prompt shares less with others than it could."""
        request, other = pair.natural.request, self._other
        self._other = request
        gain = pair.prepared.diagnosis.shared_tokens - pair.natural.diagnosis.shared_tokens
        if other is None or gain * pair.scale < _WORTH_TELLING or other.system == request.system:
            return None
        return self._causes.system(other.system, request.system)

    def _bench(self, name: str) -> _Bench:
        lens = self._lenses.of(name)
        bench = self._benches.get(id(lens))
        if bench is None:
            made = (NaturalPrompts(lens.model), ExactPrompts(lens.model))
            bench = self._benches[id(lens)] = _Bench(lens, *made)
        return bench

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)


def _prefix(diagnosis: PrefixReport, scale: float) -> Prefix:
    kept = diagnosis.shared_tokens if diagnosis.reason == "first" else diagnosis.common_tokens
    return Prefix(round(diagnosis.total_tokens * scale), round(kept * scale))


def _said(heard: Heard) -> Turn | None:
    """What the client was shown, if it is whole."""
    message = heard.answer.message
    if message.failure is not None or not message.blocks:
        return None
    return Turn("assistant", message.blocks)


def _copy(before: Past | None, now: Request) -> Turn | None:
    """The client's copy of what was answered before."""
    if before is None or before.said is None:
        return None
    at = len(before.request.turns)
    turn = now.turns[at] if at < len(now.turns) else None
    return turn if turn is not None and turn.role == "assistant" else None


def _without_stop(ids: Sequence[int], stops: frozenset[int]) -> Sequence[int]:
    return ids[:-1] if ids and ids[-1] in stops else ids


def _outline(exchange: Exchange) -> dict[str, object]:
    codec = exchange.codec
    return {
        "number": exchange.number,
        "api": codec.name if codec is not None else "",
        "status": exchange.status,
        "began": exchange.began,
        "duration": exchange.ended,
        "streamed": exchange.streamed,
        "cut": exchange.cut,
        "fixed": exchange.server == "dovetail",
    }


def _unread(exchange: Exchange, reason: str) -> Verdict:
    blank = {"session": "-", "place": 0, "model": "", "unread": f"not understood: {reason}"}
    return Verdict(**{**_outline(exchange), **blank})  # type: ignore[arg-type]
