"""Prefix diagnostics: compare a prompt with the last one of its session, and explain differences.

A harness sends several branches of prompts with one session id: titles, summaries, forks. A few
branches are therefore cached per session, and a prompt is compared with the branch with the longest
common prefix. Tokens are compared as bytes, in blocks. The cache is limited in bytes and evicts the
least recently used session first.

Prompts without a session id are assigned to a conversation by their history, and its name takes the
place of the id.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from dovetail.prompt.history_index import HistoryIndex
from dovetail.prompt.prefix_report import DivergenceReason, PrefixReport, PromptPart
from dovetail.storage.lru import LruCache

_BLOCK_BYTES = 1 << 16  # per comparison


def count_common_bytes(left: bytes | bytearray, right: memoryview) -> int:
    """Count the equal leading bytes: compare blocks, then bisect the first different block.

    `startswith` uses memcmp without a copy; memoryviews would be compared item by item.
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
    """Count the equal leading ids."""
    return count_common_bytes(left.tobytes(), memoryview(right).cast("B")) // left.itemsize


_MAX_BRANCHES = 16  # per session: an agent with its sub-agents
_MAX_OTHER_SESSIONS = 8  # compared with the first prompt of a session
_EXCERPT_TOKENS = 24  # decoded on each side of a divergence
_TOKEN_ID_BYTES = array("I").itemsize
_DIGEST_BYTES = 64  # memory per turn digest
_BRANCH_OVERHEAD_BYTES = 1024  # per branch, in addition to tokens and digests

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class PromptObservation:
    """The data of a prompt for the comparison.

    `session`, `harness`: compared as strings. Both must include the tenant if prompts of different
    tenants must not be compared.
    `system`, `tools`, `switches`: digests of the parts of the head.
    `turns`: digests of the visible turns in canonical order.
    `policy_dropped`: the template dropped reasoning.
    `reasoning_cleared`: a resume policy cleared reasoning.
    `history_keys`: what identifies the conversation if it has no session id, the most specific
    first: ids and digests of turns that a model generated. Tenants must not have keys in common.
    `context_edited`: the context edits differ from those of the conversation so far.
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
    history_keys: tuple[bytes, ...] = ()
    context_edited: bool = False


class _Branch:
    """The last prompt of one branch of a session, with its output.

    It grows in place, so that a longer prompt costs only a comparison and a copy of its new part.
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
        """Make this prompt the last of the branch. Its first `common` tokens are unchanged."""
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
        """Return whether this is the last prompt of the branch."""
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
        """Return the first part that differs, or None if the prompt extends this branch."""
        if self.system != observation.system:
            return "header"
        if self.tools != observation.tools:
            return "tools"
        if self.switches != observation.switches:
            return "switches"
        return None if self.turns == observation.turns[: len(self.turns)] else "history"

    def is_unrelated(self, observation: PromptObservation) -> bool:
        """Return whether the prompt does not belong to this branch, such as a title request.

        A conversation with a completely new head still belongs to it if its turns continue.
        """
        if self.system == observation.system or self.tools == observation.tools:
            return False
        return len(self.turns) < 2 or self.turns[:2] != observation.turns[:2]


class PrefixDiagnostics:
    """Compares each prompt with earlier ones. `decode` converts ids to text for reports."""

    __slots__ = ("_decode", "_held_bytes", "_histories", "_max_bytes", "_sessions")

    def __init__(self, *, max_bytes: int = 64 << 20, decode: Decode) -> None:
        self._max_bytes = max_bytes
        self._decode = decode
        # Branches grow inside the cache, so this class tracks the total in `_held_bytes`.
        self._sessions: LruCache[str, list[_Branch]] = LruCache()
        self._held_bytes = 0
        self._histories = HistoryIndex()

    def identify(self, observation: PromptObservation) -> PromptObservation:
        """Return the observation with a session: if it has none, by its history."""
        if observation.session is not None:
            return observation
        return replace(observation, session=self._histories.find(observation.history_keys))

    def compare(self, observation: PromptObservation) -> PrefixReport:
        """Compare a prompt with the last one of its session, then record it as the last."""
        observation = self.identify(observation)
        branches = self._branches(observation.session)
        related = [one for one in reversed(branches) if not one.is_unrelated(observation)]
        branch, common = self._nearest(related, observation)
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
        history_keys: Iterable[bytes] = (),
    ) -> None:
        """Record the generated ids, without the stop token.

        `session`: the name after `identify`.

        `turn`: the digest of the turn as sent to the client, to distinguish an edited turn from one
        that was tokenized differently.
        `prompt`: the prompt of the output; by default the last one of the session.
        `history_keys`: by which the next prompt is found if it has no session id.
        """
        for branch in reversed(self._branches(session)):
            if prompt is None or branch.ends_with(prompt):
                break
        else:
            return  # already evicted
        self._held_bytes -= branch.size
        branch.set_output(array("I", ids).tobytes(), turn)
        self._held_bytes += branch.size
        if session is not None:
            self._histories.add(session, history_keys)
        self._evict()

    def _compare_branch(
        self, branch: _Branch, observation: PromptObservation, common: int
    ) -> PrefixReport:
        total, length = len(observation.ids), len(branch.token_bytes) // _TOKEN_ID_BYTES
        if common in (total, length):
            # Another server may have continued the session: its turns are in the ledger.
            known = max(common, observation.reused_tokens)
            return PrefixReport(
                known,
                total,
                total - known,
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
        """Compare the first prompt of a session with other sessions of the same harness."""
        total = len(observation.ids)
        if observation.reused_tokens:  # evicted here, but the ledger has the history
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
        """Return the branch with the longest common prefix, and the length of the prefix."""
        best, max_common, total = None, -1, len(observation.ids)
        for branch in branches:
            id_bytes = _id_bytes(observation)
            common = count_common_bytes(branch.token_bytes, id_bytes) // _TOKEN_ID_BYTES
            if common > max_common:
                best, max_common = branch, common
                if common == total:  # no other branch has more in common
                    break
        return best, max_common

    def _branches(self, session: str | None) -> Sequence[_Branch]:
        return () if session is None else self._sessions.peek(session) or ()

    def _other_sessions(self, observation: PromptObservation) -> Iterator[_Branch]:
        """Return the newest branches of recent sessions of the same harness."""
        found = 0
        for session, branches in islice(self._sessions.newest_first(), 8 * _MAX_OTHER_SESSIONS):
            if session != observation.session and branches[-1].harness == observation.harness:
                yield branches[-1]
                found += 1
                if found == _MAX_OTHER_SESSIONS:
                    return

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
        """Cache the prompt in the branch that it extends, or in a new branch."""
        session = observation.session
        assert session is not None
        branches = [one for one in self._sessions.pop(session) or () if one is not branch]
        if branch is None:
            branch = _Branch(observation)
        else:
            self._held_bytes -= branch.size
            branch.extend(observation, common)
        branches.append(branch)
        self._held_bytes += branch.size
        if len(branches) > _MAX_BRANCHES:
            self._held_bytes -= branches.pop(0).size
        self._sessions.put(session, branches)
        self._evict()

    def release(self, session: str) -> None:
        """Discard what is held for a session."""
        branches = self._sessions.pop(session) or ()
        self._held_bytes -= sum(branch.size for branch in branches)
        self._histories.remove(session)

    def _evict(self) -> None:
        while self._held_bytes + self._histories.held_bytes > self._max_bytes:
            oldest = self._sessions.oldest()
            if oldest is None:
                return
            self.release(oldest[0])


def _id_bytes(observation: PromptObservation) -> memoryview:
    return memoryview(observation.ids).cast("B")


def _find_reason(branch: _Branch, observation: PromptObservation) -> DivergenceReason:
    part = branch.find_difference(observation)
    if observation.reasoning_cleared and part in (None, "switches"):
        return "resume"
    if observation.context_edited and part in (None, "switches"):
        return "edit"
    if part is not None:
        return part
    return "policy" if observation.policy_dropped else "retokenization"


def _first_changed_turn(old: tuple[bytes, ...], new: tuple[bytes, ...]) -> int:
    """Return the index of the first turn that differs or is missing."""
    same = (at for at, (was, now) in enumerate(zip(old, new, strict=False)) if was != now)
    return next(same, min(len(old), len(new)))
