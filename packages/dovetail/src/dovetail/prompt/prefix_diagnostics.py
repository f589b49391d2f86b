"""Prefix diagnostics: how much a prompt shares with the last one of its session, and why not more.

A harness sends more than one branch of prompts under one session id: titles, summaries, forks. So a
few branches are cached for each session, and a prompt is compared with the one it shares most with.
Tokens are compared as bytes, a block at a time. The cache is bounded by bytes; the least recently
used session is evicted first.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from dovetail.prompt.prefix_report import DivergenceReason, PrefixReport, PromptPart
from dovetail.storage.lru import LruCache

_BLOCK_BYTES = 1 << 16  # bytes compared at once


def count_common_bytes(left: bytes | bytearray, right: memoryview) -> int:
    """Count the leading bytes that are equal: by blocks, then by halves of the first difference.

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
    """Count the leading ids that are equal."""
    return count_common_bytes(left.tobytes(), memoryview(right).cast("B")) // left.itemsize


_MAX_BRANCHES = 16  # of one session: an agent with its sub-agents
_MAX_OTHER_SESSIONS = 8  # that a first prompt is compared with
_EXCERPT_TOKENS = 24  # shown as text on each side of a divergence
_TOKEN_ID_BYTES = array("I").itemsize
_DIGEST_BYTES = 64  # memory of a turn's digest
_BRANCH_OVERHEAD_BYTES = 1024  # of a branch, besides its tokens and digests

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class PromptObservation:
    """The data of a prompt that is compared.

    `session` and `harness` are compared as they are: where tenants must not be compared, both have
    to name the tenant. `system`, `tools` and `switches` are digests of the head's parts, `turns`
    those of the visible turns in canonical order. `policy_dropped`: the template dropped reasoning
    here. `reasoning_cleared`: a resume policy cleared it.
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
    """The last prompt of one branch of a session, with what was generated on it.

    It grows in place: a prompt that extends it costs a comparison and what is new.
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

    def __init__(self, observation: PromptObservation) -> None:
        self.token_bytes = bytearray()
        self.extend(observation, 0)

    @property
    def size(self) -> int:
        return len(self.token_bytes) + len(self.turns) * _DIGEST_BYTES + _BRANCH_OVERHEAD_BYTES

    def extend(self, observation: PromptObservation, common: int) -> None:
        """Make this prompt the branch's last; it shares the first `common` tokens."""
        self.harness = observation.harness
        self.system, self.tools, self.switches = (
            observation.system,
            observation.tools,
            observation.switches,
        )
        self.turns = self._prompt_turns = observation.turns
        del self.token_bytes[common * _TOKEN_ID_BYTES :]
        self.token_bytes += _id_bytes(observation)[common * _TOKEN_ID_BYTES :]
        self._prompt_bytes = len(self.token_bytes)

    def ends_with(self, observation: PromptObservation) -> bool:
        """Return whether this is the branch's last prompt."""
        own = (self._prompt_bytes // _TOKEN_ID_BYTES, self._prompt_turns, self.system, self.tools)
        return own == (
            len(observation.ids),
            observation.turns,
            observation.system,
            observation.tools,
        )

    def set_output(self, ids: bytes, turn: bytes | None) -> None:
        self.token_bytes[self._prompt_bytes :] = ids
        self.turns = self._prompt_turns if turn is None else (*self._prompt_turns, turn)

    def find_difference(self, observation: PromptObservation) -> PromptPart | None:
        """Return the first part that differs. None where the prompt extends this branch."""
        if self.system != observation.system:
            return "header"
        if self.tools != observation.tools:
            return "tools"
        if self.switches != observation.switches:
            return "switches"
        return None if self.turns == observation.turns[: len(self.turns)] else "history"

    def is_unrelated(self, observation: PromptObservation) -> bool:
        """Return whether the prompt does not belong to this branch, such as a title request.

        A conversation whose whole head changed still belongs to it: its turns continue.
        """
        if self.system == observation.system or self.tools == observation.tools:
            return False
        return len(self.turns) < 2 or self.turns[:2] != observation.turns[:2]


class PrefixDiagnostics:
    """Compares each prompt with earlier ones. `decode` turns ids into text for reports."""

    __slots__ = ("_anonymous_count", "_decode", "_held_bytes", "_max_bytes", "_sessions")

    def __init__(self, *, max_bytes: int = 64 << 20, decode: Decode) -> None:
        self._max_bytes = max_bytes
        self._decode = decode
        # Branches grow after they were put, so `_held_bytes` is counted here.
        self._sessions: LruCache[str, list[_Branch]] = LruCache()
        self._held_bytes = 0
        self._anonymous_count = 0

    def compare(self, observation: PromptObservation) -> PrefixReport:
        """Compare a prompt with the last one of its session, and make it the last."""
        branch, common = self._nearest(self._session_branches(observation), observation)
        found = (
            self._report_first(observation)
            if branch is None
            else self._compare_branch(branch, observation, common)
        )
        forked = found.reason in ("header", "tools", "switches", "history")
        self._remember(observation, None if forked else branch, common)
        return found

    def record_output(
        self,
        session: str | None,
        ids: Sequence[int],
        *,
        turn: bytes | None = None,
        prompt: PromptObservation | None = None,
    ) -> None:
        """Record what was generated, without the stop token.

        `turn` is the digest of that turn as the client was shown it: it distinguishes an edited
        turn from one that was tokenized again. `prompt` is the one it was generated on, the
        session's last if not given.
        """
        branches = reversed(self._branches(session))
        branch = next((one for one in branches if prompt is None or one.ends_with(prompt)), None)
        if branch is None:  # evicted already
            return
        self._held_bytes -= branch.size
        branch.set_output(array("I", ids).tobytes(), turn)
        self._held_bytes += branch.size
        self._evict()

    def _compare_branch(
        self, branch: _Branch, observation: PromptObservation, common: int
    ) -> PrefixReport:
        total, length = len(observation.ids), len(branch.token_bytes) // _TOKEN_ID_BYTES
        if common in (total, length):
            return PrefixReport(
                common,
                total,
                total - common,
                length - common,
                reused_tokens=observation.reused_tokens,
            )
        before, old, new = self._decode_around(branch, observation, common)
        reason = _find_reason(branch, observation)
        return PrefixReport(
            common,
            total,
            prefill_tokens=total - common,
            reprefilled_tokens=length - common,
            reason=reason,
            diverged_at=common,
            turn=_first_changed_turn(branch.turns, observation.turns)
            if reason == "history"
            else None,
            text_before=before,
            old_text=old,
            new_text=new,
            reused_tokens=observation.reused_tokens,
        )

    def _report_first(self, observation: PromptObservation) -> PrefixReport:
        """Report a session's first prompt: what it shares with other sessions of the harness."""
        total = len(observation.ids)
        if observation.reused_tokens:  # the ledger knows its history, which was evicted here
            reason: DivergenceReason | None = "policy" if observation.policy_dropped else None
            prefill_tokens = total - observation.reused_tokens
            return PrefixReport(
                observation.reused_tokens,
                total,
                prefill_tokens,
                reason=reason,
                reused_tokens=observation.reused_tokens,
            )
        branch, shared = self._nearest(self._other_sessions(observation), observation)
        if branch is None:
            return PrefixReport(
                0, total, total, reason="first", reused_tokens=observation.reused_tokens
            )
        diverged = shared not in (total, len(branch.token_bytes) // _TOKEN_ID_BYTES)
        before, old, new = (
            self._decode_around(branch, observation, shared) if diverged else ("", "", "")
        )
        return PrefixReport(
            0,
            total,
            prefill_tokens=total,
            reason="first",
            diverged_at=shared if diverged else None,
            text_before=before,
            old_text=old,
            new_text=new,
            shared_tokens=shared,
            shared_difference=branch.find_difference(observation) if diverged else None,
            reused_tokens=observation.reused_tokens,
        )

    def _nearest(
        self, branches: Iterable[_Branch], observation: PromptObservation
    ) -> tuple[_Branch | None, int]:
        """Return the branch with the longest common prefix, and the length of that."""
        best, max_common, id_bytes = None, -1, _id_bytes(observation)
        for branch in branches:
            common = count_common_bytes(branch.token_bytes, id_bytes) // _TOKEN_ID_BYTES
            if common > max_common:
                best, max_common = branch, common
        return best, max_common

    def _session_branches(self, observation: PromptObservation) -> Iterator[_Branch]:
        """Return the branches of its session that it may extend, the newest first."""
        branches = reversed(self._branches(observation.session))
        return (branch for branch in branches if not branch.is_unrelated(observation))

    def _branches(self, session: str | None) -> Sequence[_Branch]:
        return () if session is None else self._sessions.peek(session) or ()

    def _other_sessions(self, observation: PromptObservation) -> Iterator[_Branch]:
        """Return the newest branches of recent sessions of the same harness."""
        newest = (
            branches[-1]
            for session, branches in islice(self._sessions.newest_first(), 8 * _MAX_OTHER_SESSIONS)
            if session != observation.session
        )
        return islice(
            (branch for branch in newest if branch.harness == observation.harness),
            _MAX_OTHER_SESSIONS,
        )

    def _decode_around(
        self, branch: _Branch, observation: PromptObservation, index: int
    ) -> tuple[str, str, str]:
        """Return the text before the divergence, and the old and the new text after it."""
        old_ids = array("I")
        old_ids.frombytes(
            branch.token_bytes[
                index * _TOKEN_ID_BYTES : (index + _EXCERPT_TOKENS) * _TOKEN_ID_BYTES
            ]
        )
        runs = (
            observation.ids[max(0, index - _EXCERPT_TOKENS) : index],
            old_ids,
            observation.ids[index : index + _EXCERPT_TOKENS],
        )
        before, old, new = (self._decode(run.tolist()) for run in runs)
        return before, old, new

    def _remember(
        self, observation: PromptObservation, branch: _Branch | None, common: int
    ) -> None:
        """Cache the prompt, in the branch that it extends or in a new one."""
        session = observation.session
        if session is None:  # a name that no client can send
            self._anonymous_count += 1
            session = f"\0{self._anonymous_count}"
        branches = [one for one in self._sessions.pop(session) or () if one is not branch]
        if branch is None:
            branch = _Branch(observation)
        else:
            self._held_bytes -= branch.size
            branch.extend(observation, common)
        branches.append(branch)
        self._sessions.put(session, branches[-_MAX_BRANCHES:])
        self._held_bytes += branch.size - sum(one.size for one in branches[:-_MAX_BRANCHES])
        self._evict()

    def _evict(self) -> None:
        while self._held_bytes > self._max_bytes:
            _, branches = self._sessions.pop_oldest()
            self._held_bytes -= sum(branch.size for branch in branches)


def _id_bytes(observation: PromptObservation) -> memoryview:
    return memoryview(observation.ids).cast("B")


def _find_reason(branch: _Branch, observation: PromptObservation) -> DivergenceReason:
    part = branch.find_difference(observation)
    if observation.reasoning_cleared and part in (None, "switches"):
        return "resume"
    if part is not None:
        return part
    return "policy" if observation.policy_dropped else "retokenization"


def _first_changed_turn(old: tuple[bytes, ...], new: tuple[bytes, ...]) -> int:
    """The index of the first turn that differs or is missing."""
    same = (at for at, (was, now) in enumerate(zip(old, new, strict=False)) if was != now)
    return next(same, min(len(old), len(new)))
