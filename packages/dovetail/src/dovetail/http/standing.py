"""What a request says of itself and its prompt, as far as it may be told."""

from itertools import islice

from dovetail.net.trace_context import parse_traceparent
from dovetail.pipeline.preparation import PreparedRequest
from dovetail.telemetry.record import PrefixStats
from dovetail_model import Request, ToolResultBlock

_MAX_NAME_CHARS = 256  # characters of what a client calls things
_MAX_RESULTS = 256


def truncate_name(name: str) -> str:
    """A client's own name for something, no longer than a line can bear."""
    return name if len(name) <= _MAX_NAME_CHARS else name[:_MAX_NAME_CHARS]


def truncate_optional_name(name: str | None) -> str | None:
    return None if name is None else truncate_name(name)


def client_traceparent(header: str | None) -> str | None:
    """The client's own span, by the W3C's header, if it is sound."""
    found = parse_traceparent(header)
    return None if found is None else str(found)


def new_tool_result_ids(request: Request) -> tuple[str, ...]:
    """The calls whose results are new in this request: those behind the last assistant turn."""
    found: list[str] = []
    for turn in reversed(request.turns):
        if turn.role == "assistant":
            break
        found += (b.call_id for b in reversed(turn.blocks) if isinstance(b, ToolResultBlock))
    return tuple(truncate_name(id) for id in islice(reversed(found), _MAX_RESULTS))


def prefix_stats(prepared: PreparedRequest) -> PrefixStats:
    """How the prompt stands beside the last one of its session."""
    diagnosis = prepared.diagnosis
    begins = all(turn.role != "assistant" for turn in prepared.request.turns)
    return PrefixStats(
        common=diagnosis.common_tokens,
        total=diagnosis.total_tokens,
        lost=0
        if begins
        else diagnosis.reprefilled_tokens,  # of a sub-agent beside its caller nothing is
        reused=diagnosis.reused_tokens,
        reason=diagnosis.reason,
        turns=_count_turns(prepared),
    )


def _count_turns(prepared: PreparedRequest) -> dict[str, int]:
    """How the assistant turns stand in the prompt, from the first that was not there before."""
    prompt, turns = prepared.prompt, prepared.request.turns
    start = prompt.history.anchor_index or 0
    end = len(turns) - (1 if turns and turns[-1].role == "assistant" else 0)
    spoken = sum(turns[at].role == "assistant" for at in range(start, end))
    exact, written = len(prompt.exact_turns | prompt.unchanged_turns), len(prompt.rewritten_turns)
    return {"exact": exact, "written": written, "natural": max(0, spoken - exact - written)}
