"""Select the reply to a request: the first rule that matches, and the turn of its session."""

import re
from array import array
from functools import cached_property
from hashlib import blake2b

from dovetail.engines.engine import EngineRequest
from dovetail.engines.scripted.script import RuleCondition, Script, ScriptedReply, ScriptRule
from dovetail.storage.lru import LruCache
from dovetail_model import EngineError
from dovetail_tokenizers import Tokenizer

MAX_SESSIONS = 65_536
MAX_PROMPTS = 4_096
MAX_TOKENS_PER_CHAR = 4  # tokens that one character may be split into


class ReplySelector:
    """Selects replies and counts turns. A request that matches a rule does not count for others."""

    def __init__(self, script: Script, tokenizer: Tokenizer) -> None:
        self._rules = [_RuleState(rule, script) for rule in script.rules]
        self._tokenizer = tokenizer

    def select(self, request: EngineRequest) -> ScriptedReply:
        """Return the reply to a request. Raise `EngineError` if the script has none."""
        prompt = _PromptText(self._tokenizer, request.prompt)
        for rule_state in self._rules:
            if rule_state.matches(request, prompt):
                return rule_state.next_reply(request)
        raise EngineError("the script has no reply to this request: no rule matches it")


class _PromptText:
    """A prompt as text, decoded only as far as the rules require."""

    def __init__(self, tokenizer: Tokenizer, ids: "array[int]") -> None:
        self._tokenizer = tokenizer
        self._ids = ids

    @cached_property
    def text(self) -> str:
        return self._tokenizer.decode(self._ids)

    def tail(self, characters: int) -> str:
        """Return the last characters. One more is decoded, because the first may be incomplete."""
        tokens = characters + 1
        while True:
            text = self._tokenizer.decode(self._ids[-tokens:])
            if tokens >= len(self._ids) or len(text) > characters + MAX_TOKENS_PER_CHAR:
                return text[-characters:]
            tokens *= 2


class _RuleState:
    """A rule and how often it was used."""

    def __init__(self, rule: ScriptRule, script: Script) -> None:
        self._rule = rule
        self._end = script.end
        self._remaining = rule.times
        self._regex = re.compile(rule.when.regex) if rule.when and rule.when.regex else None
        self._sessions: LruCache[str, int] = LruCache(MAX_SESSIONS)
        self._prompts = _PromptHistory()

    def matches(self, request: EngineRequest, prompt: _PromptText) -> bool:
        if self._remaining == 0:
            return False
        when = self._rule.when
        return when is None or (
            _matches_request(when, request) and self._matches_text(when, prompt)
        )

    def next_reply(self, request: EngineRequest) -> ScriptedReply:
        if self._remaining is not None:
            self._remaining -= 1
        replies = self._rule.replies
        if len(replies) == 1 and self._end != "fail":
            return replies[0]
        turn = self._turn_index(request)
        if turn < len(replies):
            return replies[turn]
        if self._end == "fail":
            raise EngineError(
                f"the script has no more turns: this session has used all {len(replies)}"
            )
        return replies[-1] if self._end == "last" else replies[turn % len(replies)]

    def _matches_text(self, when: RuleCondition, prompt: _PromptText) -> bool:
        if when.text is None and self._regex is None:
            return True
        text = prompt.text if when.tail is None else prompt.tail(when.tail)
        if when.text is not None and when.text not in text:
            return False
        return self._regex is None or self._regex.search(text) is not None

    def _turn_index(self, request: EngineRequest) -> int:
        """Return how many turns of its session came before this request."""
        if request.session is None:
            return self._prompts.depth(request.prompt)
        turn = self._sessions.peek(request.session) or 0
        self._sessions.put(request.session, turn + 1)
        return turn


def _matches_request(when: RuleCondition, request: EngineRequest) -> bool:
    length = len(request.prompt)
    return (
        (when.session is None or when.session == request.session)
        and (when.shorter is None or length < when.shorter)
        and (when.longer is None or length > when.longer)
    )


class _PromptHistory:
    """The prompts seen, each with its depth: a prompt that extends another is one turn later.

    A repeated prompt is the same turn again, and a fork continues from its branching point.
    """

    def __init__(self) -> None:
        self._depths: LruCache[tuple[int, bytes], int] = LruCache(MAX_PROMPTS)

    def depth(self, prompt: "array[int]") -> int:
        """Return the length of the chain of seen prompts that this one extends."""
        view = memoryview(prompt).cast("B")
        digest, at, depth = blake2b(digest_size=16), 0, 0
        for length in sorted({length for length, _ in self._depths if length < len(view)}):
            digest.update(view[at:length])
            at = length
            known = self._depths.get((length, digest.digest()))
            if known is not None:
                depth = max(depth, known + 1)
        digest.update(view[at:])
        self._depths.put((len(view), digest.digest()), depth)
        return depth
