"""The prefix doctor: what a prompt shares with the last one of its session, and why not more.

A harness sends more than one line of prompts under one session id: titles, summaries, forks. So a
few lines are kept for each session, and a prompt is compared with the one it shares most with.
Tokens are compared as bytes, a block at a time. What is kept is bounded by bytes; the session that
was heard of longest ago goes first.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, get_args

from dovetail.storage.lru import LruCache

DivergenceReason = Literal[
    "first", "header", "tools", "switches", "history", "policy", "resume", "retokenization"
]
"""Why a prompt does not go on from the last one. A small closed set: it labels a counter."""

DIVERGENCE_REASONS: tuple[str, ...] = get_args(DivergenceReason)

PromptPart = Literal["header", "tools", "switches", "history"]
"""Which part of two prompts differs first."""

_REASON_TEXT: dict[DivergenceReason, str] = {
    "first": "first prompt of the session",
    "header": "the system text changed",
    "tools": "the tool list changed",
    "switches": "the template's switches changed",
    "history": "the history was edited",
    "policy": "the template dropped thoughts",
    "resume": "thoughts were cleared on purpose at a resume",
    "retokenization": "the same request became other tokens",
}


@dataclass(frozen=True)
class PrefixReport:
    """A prompt beside the last one of its session.

    `common` leading tokens are those of the last prompt and what was generated on it, `again` of
    `total` must be prefilled, `lost` tokens of the last whole are a prefix no longer. `reason` is
    None where nothing diverged. `at` is the first divergent token and `turn` the first turn that
    is not the same, if it is a turn. `before`, `was` and `now` are the text around `at`: payload,
    not for logs. `reused` leading tokens came from the ledger as they were.

    For a session's first prompt `shared` is the most leading tokens that it has in common with a
    recent prompt of another session of the same harness, and `shared_differs` what differs there.
    """

    common_tokens: int
    total_tokens: int
    prefill_tokens: int
    reprefilled_tokens: int = 0
    reason: DivergenceReason | None = None
    diverged_at: int | None = None
    turn: int | None = None
    text_before: str = ""
    old_text: str = ""
    new_text: str = ""
    reused_tokens: int = 0
    shared_tokens: int = 0
    shared_difference: PromptPart | None = None


def describe_prefix(report: PrefixReport, *, payload: bool = False) -> str:
    """A line for people. With `payload` a second one shows the text around the divergence."""
    one = report
    kept = f"{one.common_tokens} of {one.total_tokens} tokens kept, {one.prefill_tokens} to prefill"
    if one.reason is None:
        return f"prefix: {kept}"
    meaning = _REASON_TEXT[one.reason]
    if one.reason == "first":
        line = f"prefix: {meaning}, {one.prefill_tokens} tokens to prefill"
        line += f"; {one.shared_tokens} shared with other sessions" if one.shared_tokens else ""
        line += f", then the {one.shared_difference} differs" if one.shared_difference else ""
    else:
        at = "" if one.diverged_at is None else f" at token {one.diverged_at}"
        turn = "" if one.turn is None else f", turn {one.turn}"
        why = f"{one.reason}: {meaning}"
        line = f"prefix: broken{at}{turn} ({why}): {kept}, {one.reprefilled_tokens} lost"
    if payload and one.diverged_at is not None:
        line += f"\n  after {one.text_before!r}: was {one.old_text!r}, now {one.new_text!r}"
    return line


def prefix_headers(report: PrefixReport) -> list[tuple[str, str]]:
    """Response headers. Nothing in them tells about other sessions, or any text."""
    values = {
        "common": report.common_tokens,
        "total": report.total_tokens,
        "again": report.prefill_tokens,
        "reason": report.reason,
        "turn": report.turn,
    }
    return [
        (f"x-dovetail-prefix-{name}", str(value))
        for name, value in values.items()
        if value is not None
    ]


_BLOCK_BYTES = 1 << 16  # bytes compared at once


def count_common_bytes(left: bytes | bytearray, right: memoryview) -> int:
    """How many leading bytes are the same: blocks first, then halves of the one that differs.

    `startswith` compares with memcmp and copies nothing; memoryviews compare item by item.
    """
    end = min(len(left), len(right))
    begin = 0
    while begin < end:
        stop = min(begin + _BLOCK_BYTES, end)
        if not left.startswith(right[begin:stop], begin):
            break
        begin = stop
    else:
        return end
    while stop - begin > 1:
        middle = (begin + stop) // 2
        if left.startswith(right[begin:middle], begin):
            begin = middle
        else:
            stop = middle
    return begin


def count_common_ids(left: "array[int]", right: "array[int]") -> int:
    """How many leading ids are the same."""
    return count_common_bytes(left.tobytes(), memoryview(right).cast("B")) // left.itemsize


_MAX_BRANCHES = 16  # kept of one session: an agent with its sub-agents
_MAX_OTHER_SESSIONS = 8  # sessions that a first prompt is compared with
_EXCERPT_TOKENS = 24  # tokens of text shown on each side of a divergence
_TOKEN_ID_BYTES = array("I").itemsize
_DIGEST_BYTES = 64  # bytes that the digest of a turn takes up
_BRANCH_OVERHEAD_BYTES = 1024  # of a line, besides its tokens and digests

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class PromptObservation:
    """What is known of a prompt.

    `session` and `harness` are compared as they are: where tenants must not be set beside each
    other, both have to name the tenant. `system`, `tools` and `switches` are digests of the
    head's parts, `turns` those of the visible turns in canonical order. `policy_dropped` says
    that the template dropped thoughts here, `deliberate` that a resume policy cleared them.
    """

    session: str | None
    harness: str
    ids: "array[int]"
    system: bytes = b""
    tools: bytes = b""
    switches: bytes = b""
    turns: tuple[bytes, ...] = ()
    reused_tokens: int = 0
    policy_dropped: bool = False
    reasoning_cleared: bool = False


class _Branch:
    """The last prompt of one line of a session, with what was generated on it.

    It grows in place: a prompt that goes on from it costs a comparison and what is new.
    """

    __slots__ = (
        "_prompt_bytes",
        "_prompt_turns",
        "harness",
        "switches",
        "system",
        "token_bytes",
        "tools",
        "turns",
    )

    def __init__(self, seen: PromptObservation) -> None:
        self.token_bytes = bytearray()
        self.extend(seen, 0)

    @property
    def size(self) -> int:
        return len(self.token_bytes) + len(self.turns) * _DIGEST_BYTES + _BRANCH_OVERHEAD_BYTES

    def extend(self, seen: PromptObservation, common: int) -> None:
        """The prompt is the line's last from now on. It shares this many tokens with it."""
        self.harness = seen.harness
        self.system, self.tools, self.switches = seen.system, seen.tools, seen.switches
        self.turns = self._prompt_turns = seen.turns
        del self.token_bytes[common * _TOKEN_ID_BYTES :]
        self.token_bytes += _id_bytes(seen)[common * _TOKEN_ID_BYTES :]
        self._prompt_bytes = len(self.token_bytes)

    def ends_with(self, seen: PromptObservation) -> bool:
        """Whether this is the prompt that the line ends in."""
        own = (self._prompt_bytes // _TOKEN_ID_BYTES, self._prompt_turns, self.system, self.tools)
        return own == (len(seen.ids), seen.turns, seen.system, seen.tools)

    def set_output(self, ids: bytes, turn: bytes | None) -> None:
        self.token_bytes[self._prompt_bytes :] = ids
        self.turns = self._prompt_turns if turn is None else (*self._prompt_turns, turn)

    def find_difference(self, seen: PromptObservation) -> PromptPart | None:
        """The part that is not the same. None where the prompt goes on from this line."""
        if self.system != seen.system:
            return "header"
        if self.tools != seen.tools:
            return "tools"
        if self.switches != seen.switches:
            return "switches"
        return None if self.turns == seen.turns[: len(self.turns)] else "history"

    def is_unrelated(self, seen: PromptObservation) -> bool:
        """Whether the prompt has nothing to do with this line: a title request beside a session.

        A conversation whose head changed all over is still itself: its turns go on.
        """
        if self.system == seen.system or self.tools == seen.tools:
            return False
        return len(self.turns) < 2 or self.turns[:2] != seen.turns[:2]


class PrefixDiagnostics:
    """Remembers prompts and says what became of their prefix. `decode` makes text of ids."""

    __slots__ = ("_anonymous_count", "_decode", "_held_bytes", "_max_bytes", "_sessions")

    def __init__(self, *, max_bytes: int = 64 << 20, decode: Decode) -> None:
        self._max_bytes = max_bytes
        self._decode = decode
        # Branches grow after they were put, so `_held_bytes` is counted here.
        self._sessions: LruCache[str, list[_Branch]] = LruCache()
        self._held_bytes = 0
        self._anonymous_count = 0

    def compare(self, observation: PromptObservation) -> PrefixReport:
        """The prompt beside the last one of its session. It is the last one from now on."""
        line, common = self._nearest(self._session_branches(observation), observation)
        found = (
            self._report_first(observation)
            if line is None
            else self._compare_branch(line, observation, common)
        )
        forked = found.reason in ("header", "tools", "switches", "history")
        self._remember(observation, None if forked else line, common)
        return found

    def record_output(
        self,
        session: str | None,
        ids: Sequence[int],
        *,
        turn: bytes | None = None,
        prompt: PromptObservation | None = None,
    ) -> None:
        """What the model said then, without the token that ended it.

        `turn` is the digest of that turn as the client was shown it: with it an edited answer is
        told from one that was tokenized anew. `prompt` is the one it answers, the session's last
        if not given.
        """
        lines = reversed(self._branches(session))
        line = next((one for one in lines if prompt is None or one.ends_with(prompt)), None)
        if line is None:  # forgotten already
            return
        self._held_bytes -= line.size
        line.set_output(array("I", ids).tobytes(), turn)
        self._held_bytes += line.size
        self._evict()

    def _compare_branch(self, line: _Branch, seen: PromptObservation, common: int) -> PrefixReport:
        total, length = len(seen.ids), len(line.token_bytes) // _TOKEN_ID_BYTES
        if common in (total, length):
            return PrefixReport(
                common, total, total - common, length - common, reused_tokens=seen.reused_tokens
            )
        before, was, now = self._decode_around(line, seen, common)
        reason = _find_reason(line, seen)
        return PrefixReport(
            common,
            total,
            prefill_tokens=total - common,
            reprefilled_tokens=length - common,
            reason=reason,
            diverged_at=common,
            turn=_first_changed_turn(line.turns, seen.turns) if reason == "history" else None,
            text_before=before,
            old_text=was,
            new_text=now,
            reused_tokens=seen.reused_tokens,
        )

    def _report_first(self, seen: PromptObservation) -> PrefixReport:
        """A prompt without a past: what it shares with other sessions of the harness."""
        total = len(seen.ids)
        if seen.reused_tokens:  # the ledger knows its past, which was forgotten here
            reason: DivergenceReason | None = "policy" if seen.policy_dropped else None
            again = total - seen.reused_tokens
            return PrefixReport(
                seen.reused_tokens, total, again, reason=reason, reused_tokens=seen.reused_tokens
            )
        line, shared = self._nearest(self._other_sessions(seen), seen)
        if line is None:
            return PrefixReport(0, total, total, reason="first", reused_tokens=seen.reused_tokens)
        diverged = shared not in (total, len(line.token_bytes) // _TOKEN_ID_BYTES)
        before, was, now = self._decode_around(line, seen, shared) if diverged else ("", "", "")
        return PrefixReport(
            0,
            total,
            prefill_tokens=total,
            reason="first",
            diverged_at=shared if diverged else None,
            text_before=before,
            old_text=was,
            new_text=now,
            shared_tokens=shared,
            shared_difference=line.find_difference(seen) if diverged else None,
            reused_tokens=seen.reused_tokens,
        )

    def _nearest(
        self, lines: Iterable[_Branch], seen: PromptObservation
    ) -> tuple[_Branch | None, int]:
        """The line that shares most, the first of equals, and how many tokens it shares."""
        best, most, whole = None, -1, _id_bytes(seen)
        for line in lines:
            common = count_common_bytes(line.token_bytes, whole) // _TOKEN_ID_BYTES
            if common > most:
                best, most = line, common
        return best, most

    def _session_branches(self, seen: PromptObservation) -> Iterator[_Branch]:
        """The lines of its session that it may go on from, the newest first."""
        lines = reversed(self._branches(seen.session))
        return (line for line in lines if not line.is_unrelated(seen))

    def _branches(self, session: str | None) -> Sequence[_Branch]:
        return () if session is None else self._sessions.peek(session) or ()

    def _other_sessions(self, seen: PromptObservation) -> Iterator[_Branch]:
        """The newest line of recent sessions of the same harness."""
        newest = (
            lines[-1]
            for session, lines in islice(self._sessions.newest_first(), 8 * _MAX_OTHER_SESSIONS)
            if session != seen.session
        )
        return islice(
            (line for line in newest if line.harness == seen.harness), _MAX_OTHER_SESSIONS
        )

    def _decode_around(
        self, line: _Branch, seen: PromptObservation, index: int
    ) -> tuple[str, str, str]:
        """Text before the divergence, and behind it as it was and as it is."""
        was = array("I")
        was.frombytes(
            line.token_bytes[index * _TOKEN_ID_BYTES : (index + _EXCERPT_TOKENS) * _TOKEN_ID_BYTES]
        )
        runs = (
            seen.ids[max(0, index - _EXCERPT_TOKENS) : index],
            was,
            seen.ids[index : index + _EXCERPT_TOKENS],
        )
        before, old, new = (self._decode(run.tolist()) for run in runs)
        return before, old, new

    def _remember(self, seen: PromptObservation, line: _Branch | None, common: int) -> None:
        """Keeps the prompt, in the line that it goes on from or in one of its own."""
        session = seen.session
        if session is None:  # a name that no client can send
            self._anonymous_count += 1
            session = f"\0{self._anonymous_count}"
        lines = [one for one in self._sessions.pop(session) or () if one is not line]
        if line is None:
            line = _Branch(seen)
        else:
            self._held_bytes -= line.size
            line.extend(seen, common)
        lines.append(line)
        self._sessions.put(session, lines[-_MAX_BRANCHES:])
        self._held_bytes += line.size - sum(one.size for one in lines[:-_MAX_BRANCHES])
        self._evict()

    def _evict(self) -> None:
        while self._held_bytes > self._max_bytes:
            _, lines = self._sessions.pop_oldest()
            self._held_bytes -= sum(line.size for line in lines)


def _id_bytes(seen: PromptObservation) -> memoryview:
    return memoryview(seen.ids).cast("B")


def _find_reason(line: _Branch, seen: PromptObservation) -> DivergenceReason:
    part = line.find_difference(seen)
    if seen.reasoning_cleared and part in (None, "switches"):
        return "resume"
    if part is not None:
        return part
    return "policy" if seen.policy_dropped else "retokenization"


def _first_changed_turn(old: tuple[bytes, ...], new: tuple[bytes, ...]) -> int:
    """The first turn that is not the same, or not there."""
    same = (at for at, (was, now) in enumerate(zip(old, new, strict=False)) if was != now)
    return next(same, min(len(old), len(new)))
