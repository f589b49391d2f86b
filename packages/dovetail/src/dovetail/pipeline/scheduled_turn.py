"""Describe turns to the session scheduling of a pool, and report how they ended."""

import hashlib
import secrets

from dovetail.pipeline.generation import Generation
from dovetail.pipeline.preparation import PreparedRequest
from dovetail.pipeline.registry import TokenModel
from dovetail.pipeline.session_keys import cache_salt, parent_session_key, session_key
from dovetail.routing.session_admission import SessionAdmission, SessionTurn
from dovetail.routing.session_turns import TurnEnd, TurnProfile
from dovetail.routing.tool_times import tool_time_key
from dovetail_model import FinishReason, Hints, ToolCallBlock

MAX_TOOL_KEYS = 16
#: Turns of sessions without a name are scheduled one by one.
ANONYMOUS_PREFIX = "request:"
#: Priorities have up to 32 bits, with the sign.
_STRICT_FACTOR, _PRIORITY_FACTOR = 1 << 43, 1 << 10
_SENSITIVITY_STEPS, _MAX_SENSITIVITY = 100, _PRIORITY_FACTOR - 1


def begin_turn(
    sessions: SessionAdmission, entry: TokenModel, prepared: PreparedRequest
) -> SessionTurn:
    """Return the turn of a request.

    Conversations with another first message, system text, adapter or other tools have places of
    their own: subagents, and what clients send under one `prompt_cache_key`.
    """
    request, head = prepared.request, prepared.prompt.head
    first_turn = b"".join(prepared.prompt.history.digests[:1])
    session = session_key(prepared) or f"{ANONYMOUS_PREFIX}{secrets.token_hex(8)}"
    scope = f"{entry.adapter or ''}/{cache_salt(request) or ''}/"
    shared = scope + (head.system + head.tools).hex()
    return sessions.begin_turn(
        TurnProfile(
            session=session,
            parent=parent_session_key(request.identity),
            branch=f"{session}#{_short_digest(shared + first_turn.hex())}",
            tenant=request.identity.tenant,
            head=shared + head.switches.hex(),
            urgency=urgency(request.hints),
            background=is_background(request.hints),
            choices=max(1, request.sampling.n),
        )
    )


def end_turn(
    turn: SessionTurn,
    prepared: PreparedRequest,
    generation: Generation,
    finish: FinishReason | None,
) -> None:
    """Report the end of a turn: the tools that the client runs now, or that it failed."""
    identity = prepared.request.identity
    if finish is None:
        turn.cancel(release=True)  # the client disconnected, or the turn failed
        if identity.final:
            turn.release_session()  # perhaps no engine has received the request
        return
    if identity.final or turn.profile.session.startswith(ANONYMOUS_PREFIX):
        turn.release_session()  # no place is held after the turn
    calls = [one for one in generation.message().blocks if isinstance(one, ToolCallBlock)]
    turn.finish(
        TurnEnd(
            context_tokens=len(prepared.prompt.ids) + len(generation.ids),
            tool_keys=tuple(
                tool_time_key(call.name, call.arguments) for call in calls[:MAX_TOOL_KEYS]
            ),
            waits_for_user=not calls,
        )
    )


def _short_digest(name: str) -> str:
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()


def urgency(hints: Hints) -> int:
    """Return one number for strict priority, priority and latency sensitivity, in this order."""
    sensitivity = round((hints.latency_sensitivity or 0.0) * _SENSITIVITY_STEPS)
    return (
        (hints.strict_priority or 0) * _STRICT_FACTOR
        + (hints.priority or 0) * _PRIORITY_FACTOR
        + max(0, min(sensitivity, _MAX_SENSITIVITY))
    )


def is_background(hints: Hints) -> bool:
    """Return whether no client waits for the response: its latency does not matter."""
    return hints.latency_sensitivity is not None and hints.latency_sensitivity <= 0
