"""The view of a session as JSON values: its agents, its turns and the waits for tools.

Times are seconds from the start of the first turn.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from dovetail.telemetry.record import RequestRecord
from dovetail.telemetry.trace.reader import Trace, find_tool_waits
from dovetail.telemetry.trace.sessions import TrackAllocator, find_parent_sessions
from dovetail.telemetry.trace.writer import TraceLine
from dovetail.ui.explanation import divide_prompt, explain_prefix
from dovetail.ui.history import SessionTotals, StoredTurn

Json = dict[str, Any]


def build_totals_view(totals: SessionTotals) -> Json:
    """Return the totals of a session, as in the list of sessions."""
    view: Json = msgspec.to_builtins(totals)
    return view | {"members": sorted(totals.members), "agents": len(totals.agents)}


def build_session_view(totals: SessionTotals, stored: Iterable[StoredTurn]) -> Json:
    """Return a session with its turns in order of their start."""
    turns = sorted(stored, key=lambda one: one.record.began)
    records = [one.record for one in turns]
    start = records[0].began if records else totals.began
    tracks = TrackAllocator(find_parent_sessions(records))
    agents: dict[tuple[str, str], Json] = {}
    views = []
    for number, one in enumerate(turns):
        record = one.record
        key = (record.session or "", record.agent or "")
        agent = agents.setdefault(key, _new_agent(record, tracks, len(agents)))
        _add_to_agent(agent, record)
        row = _find_row(tracks, record, agent["name"])
        views.append(build_turn_view(one, number, start) | {"agent": agent["number"], "row": row})
    _link_agents(agents, tracks.parents)
    return {
        "session": build_totals_view(totals),
        "start": start,
        "end": max((one.began + one.duration - start for one in records), default=0.0),
        "agents": list(agents.values()),
        "turns": views,
        "waits": _build_waits(records, start),
    }


def build_trace_view(trace: Trace, session: str | None) -> Json:
    """Return the view of the requests of a trace file."""
    lines = [line for line in trace.lines if line.decoded is not None]
    first = lines[0]
    totals = SessionTotals(tenant=first.tenant, id=session or first.session or "")
    for line in lines:
        totals.add_agent(line.session, line.agent, line.harness)
        totals.members.add(line.session or "")
        totals.add_record(line)
    totals.stored = totals.requests
    return build_session_view(totals, map(_from_line, lines))


def build_turn_view(stored: StoredTurn, number: int, start: float) -> Json:
    """Return one turn. `start` is the start of its session."""
    record = stored.record
    view: Json = msgspec.to_builtins(record)
    names = _OMITTED & view.keys()
    return {name: value for name, value in view.items() if name not in names} | {
        "number": number,
        "begin": record.began - start,
        "end": record.began - start + record.duration,
        "stages": list(record.stages()),
        "spans": _build_spans(record),
        "prompt": divide_prompt(record),
        "explanations": explain_prefix(record),
        "divergence": stored.divergence,
        "has_payload": stored.request is not None or stored.response is not None,
    }


#: Fields of the record that the view has in another form.
_OMITTED = {"thoughts", "texts", "calls", "traceparent", "prefix_line", "schema"}
_OMITTED |= {"event", "prefix_blocks", "payload"}


def _from_line(line: TraceLine) -> StoredTurn:
    payload = line.payload
    if payload is None:
        return StoredTurn(line)
    return StoredTurn(line, None, payload.request, payload.response)


def _build_spans(record: RequestRecord) -> list[Json]:
    """Return the spans of the output in order of their start."""
    spans: list[Json] = [
        {"kind": kind, "begin": span.begin, "end": span.end}
        for kind, found in (("reasoning", record.reasoning_spans), ("text", record.text_spans))
        for span in found
    ]
    spans += (
        {
            "kind": "call",
            "name": call.name,
            "id": call.id,
            "begin": call.begin,
            "end": record.call_end(call),
            "dispatched": call.dispatched,
            "returned": call.returned,
        }
        for call in record.calls
    )
    return sorted(spans, key=lambda span: (span["begin"], span["end"]))


def _build_waits(records: Sequence[RequestRecord], start: float) -> list[Json]:
    """Return the times in which the client ran a tool: from its call to the request after it."""
    numbers = {id(record): number for number, record in enumerate(records)}
    return [
        {
            "turn": numbers[id(wait.line)],
            "result_turn": numbers[id(wait.result_line)],
            "name": wait.call.name,
            "begin": wait.line.began - start + wait.dispatched,
            "end": wait.result_line.began - start,
        }
        for wait in find_tool_waits(records)
    ]


def _new_agent(record: RequestRecord, tracks: TrackAllocator, number: int) -> Json:
    counts = dict.fromkeys(("turns", "calls", "input_tokens", "cached_tokens", "output_tokens"), 0)
    return {
        "number": number,
        "name": tracks.agent_name(record),
        "session": record.session or "",
        "agent": record.agent or "",
        "parent": None,
        **counts,
    }


def _add_to_agent(agent: Json, record: RequestRecord) -> None:
    agent["turns"] += 1
    agent["calls"] += len(record.calls)
    if record.usage is not None:
        agent["input_tokens"] += record.usage.input_tokens
        agent["cached_tokens"] += record.usage.cached_tokens
        agent["output_tokens"] += record.usage.output_tokens


def _find_row(tracks: TrackAllocator, record: RequestRecord, agent: str) -> int:
    """Return a row in which no earlier request overlaps. Each agent has rows of its own."""
    begin = round(record.began * 1e6)
    end = begin + max(1, round(record.duration * 1e6))
    return tracks.thread_track(record, agent, begin, end).number


def _link_agents(
    agents: dict[tuple[str, str], Json], parents: Mapping[tuple[str, str], str]
) -> None:
    """Set the parent of each subagent: the first agent of its own or of the parent session."""
    first_of_session: dict[str, int] = {}
    for key in sorted(agents, key=lambda key: (key[1] != "", agents[key]["number"])):
        first_of_session.setdefault(key[0], agents[key]["number"])
    parent_sessions = {child: parent for (_, child), parent in parents.items()}
    for agent in agents.values():
        session = agent["session"]
        above = first_of_session.get(parent_sessions.get(session, ""))
        own = first_of_session[session]
        agent["parent"] = above if own == agent["number"] else own
