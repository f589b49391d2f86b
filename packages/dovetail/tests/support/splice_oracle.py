"""Decide which tokens a prompt may contain for a turn: the oracle of the tests of false splices.

It is written from the specification, not from the code: a turn has its own tokens where a handle or
its unique position among visible histories identifies it, and where the client's copy is
equivalent. In all other cases it is what the client wrote.
"""

import json
import re
from array import array
from collections.abc import Sequence
from typing import Any

from forked_histories import Cluster, GeneratedTurn, make_cluster, parts, small_model

from dovetail.ledger.seal import read_entry_id
from dovetail.pipeline.preparation import PreparedRequest
from dovetail_model import ReasoningBlock, TextBlock, ToolCallBlock, ToolResultBlock, Turn

_CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.S)


class FalseSplice(AssertionError):
    """A turn got tokens that do not match this history."""


class Oracle:
    """Decides which tokens are allowed for each turn of a history."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._client = make_cluster("client")

    async def check(self, prepared: PreparedRequest, replica: int = 0) -> None:
        """Check a prompt. Raises `FalseSplice`."""
        turns = prepared.request.turns
        tenant = prepared.request.identity.tenant
        places = [at for at, turn in enumerate(turns) if turn.role == "assistant"]
        plain = await self._client.preparers[0].prepare(prepared.request)
        found, written = parts(prepared.prompt.ids), parts(plain.prompt.ids)
        if not len(found) == len(written) == len(places) + 1:
            raise FalseSplice(f"{len(places)} turns, but {len(found)} and {len(written)} parts")
        candidates = {at: self._candidates(turns, at, tenant, replica) for at in places}
        for number, at in enumerate(places):
            allowed = [generated.ids for generated in candidates[at]]
            allowed += self._inherited(candidates, turns, at, number, tenant)
            if at not in prepared.prompt.exact_turns:
                allowed.append(written[number])
            if found[number] not in allowed and not self._is_restored(
                prepared, at, found[number], tenant
            ):
                raise FalseSplice(f"turn {at} is {text_of(found[number])!r}")
        _check_other_turns(prepared, plain)

    def _candidates(
        self, turns: Sequence[Turn], at: int, tenant: str, replica: int
    ) -> list[GeneratedTurn]:
        """Return the turns that this one may be, by its handles or by its position."""
        turn = turns[at]
        named = self._named(turn, tenant)
        stored = [generated for generated in named if generated.replica == replica]
        if stored or any(generated for generated in named if _seals(turn) & _entries([generated])):
            return [generated for generated in named if is_equivalent(generated, turn)]
        path = _path(turns[: at + 1])
        alike = [
            generated
            for generated in self._cluster.generated
            if generated.tenant == tenant and generated.replica == replica
            if is_equivalent(generated, turn) and _path(_full_history(generated)) == path
        ]
        return alike if len({generated.ids.tobytes() for generated in alike}) < 2 else []

    def _named(self, turn: Turn, tenant: str) -> list[GeneratedTurn]:
        ids = {_key(b.id) for b in turn.blocks if isinstance(b, ToolCallBlock)}
        seals = _seals(turn)
        return [
            generated
            for generated in self._cluster.generated
            if generated.tenant == tenant
            and (generated.entry in seals or ids & {_key(call.id) for call in generated.calls})
        ]

    def _inherited(
        self,
        candidates: dict[int, list[GeneratedTurn]],
        turns: Sequence[Turn],
        at: int,
        number: int,
        tenant: str,
    ) -> "list[array[int]]":
        """Return the tokens at that position when a later, certain turn was generated."""
        named = self._named(turns[at], tenant)
        allowed = []
        for later in (place for place in candidates if place > at):
            path = _path(turns[:later])
            lines = [
                generated
                for generated in candidates[later]
                if _path(_full_history(generated)[:-1]) == path
            ]
            stood = {parts(generated.prepared.prompt.ids)[number].tobytes() for generated in lines}
            for generated in lines if len(stood) == 1 else ():
                then = generated.prepared.request.turns[at]
                above = [one for one in generated.ancestors() if len(_full_history(one)) == at + 1]
                contradicted = named and not set(named) & set(above)
                if not contradicted and _same_turn(then, turns[at]):
                    allowed.append(parts(generated.prepared.prompt.ids)[number])
        return allowed

    def _is_restored(
        self, prepared: PreparedRequest, at: int, found: "array[int]", tenant: str
    ) -> bool:
        """Whether a turn is the reasoning of a seal followed by the client's own text."""
        entry = prepared.prompt.history.entries.get(at)
        turn = prepared.request.turns[at]
        if entry is None or entry.chain or at not in prepared.prompt.rewritten_turns:
            return False
        sealed = [
            generated for generated in self._named(turn, tenant) if generated.entry == entry.id
        ]
        if not sealed or not (_seals(turn) & _entries(sealed)):
            return False
        size = max(span.tokens for span in entry.spans)
        there = text_of(found)
        texts = [b.text.strip() for b in turn.blocks if isinstance(b, TextBlock)]
        calls = [json.loads(call)["arguments"] for call in _CALL.findall(there)]
        return (
            found[:size] == sealed[0].ids[:size]
            and all(text in there for text in texts)
            and [_canonical(json.dumps(call)) for call in calls] == _arguments(turn)
            and _same_reasoning(sealed[0].turn, turn)
        )


def is_equivalent(generated: GeneratedTurn, turn: Turn) -> bool:
    """Whether a client's copy of a turn is equivalent to what was generated."""
    return _same_turn(generated.turn, turn)


def _same_turn(ours: Turn, theirs: Turn) -> bool:
    return _visible(ours) == _visible(theirs) and _same_reasoning(ours, theirs)


def _same_reasoning(ours: Turn, theirs: Turn) -> bool:
    """Whether the client's reasoning is a part of the recorded reasoning."""
    recorded = [b.text.strip() for b in ours.blocks if isinstance(b, ReasoningBlock)]
    shown = [b.text.strip() for b in theirs.blocks if isinstance(b, ReasoningBlock)]
    left = iter(recorded)
    return all(any(text == other for other in left) for text in shown if text)


def _visible(turn: Turn) -> list[Any]:
    """What differs between assistant turns if not only their form differs."""
    texts: list[Any] = ["".join(b.text for b in turn.blocks if isinstance(b, TextBlock)).strip()]
    calls = [block for block in turn.blocks if isinstance(block, ToolCallBlock)]
    return [turn.role, *texts, *((call.name, _canonical(call.arguments)) for call in calls)]


def _exact(turn: Turn, call_ids: list[str]) -> list[Any]:
    """All that a template can show of a user's or a tool's turn, after a turn with these calls."""
    content: list[Any] = []
    for block in turn.blocks:
        if isinstance(block, ToolResultBlock):
            key = _key(block.call_id)
            texts = [b.text for b in block.blocks if isinstance(b, TextBlock) and b.text]
            content.append((call_ids.index(key) if key in call_ids else None, "\n".join(texts)))
        elif isinstance(block, TextBlock):
            content.append(block.text)
    return [turn.role, *content]


def _canonical(arguments: str) -> str:
    given = {k: v for k, v in json.loads(arguments).items() if v is not False}
    whole = {k: int(v) if isinstance(v, float) else v for k, v in given.items()}
    return json.dumps(whole, sort_keys=True, separators=(",", ":"))


def _arguments(turn: Turn) -> list[str]:
    return [_canonical(b.arguments) for b in turn.blocks if isinstance(b, ToolCallBlock)]


def _path(turns: Sequence[Turn]) -> list[Any]:
    path, call_ids = [], list[str]()
    for turn in turns:
        if turn.role == "assistant":
            path.append(_visible(turn))
            own = [_key(b.id) for b in turn.blocks if isinstance(b, ToolCallBlock)]
            call_ids = own or call_ids
        else:
            path.append(_exact(turn, call_ids))
    return path


def _full_history(generated: GeneratedTurn) -> tuple[Turn, ...]:
    """Return the history up to a turn as the server saw it."""
    return (*generated.prepared.request.turns, generated.turn)


def _seals(turn: Turn) -> set[str | None]:
    seals = [b.seal for b in turn.blocks if isinstance(b, ReasoningBlock) and b.seal]
    return {read_entry_id(seal) for seal in seals}


def _entries(turns: Sequence[GeneratedTurn]) -> set[str | None]:
    return {one.entry for one in turns}


def _key(id: str) -> str:
    return "".join(filter(str.isalnum, id))


def text_of(ids: "array[int]") -> str:
    return small_model().tokenizer.decode(ids)


def _check_other_turns(prepared: PreparedRequest, plain: PreparedRequest) -> None:
    """Check that the turns of users and tools are those of a prompt without the ledger."""
    for role in ("system", "user", "tool"):
        found, written = (parts(one.prompt.ids, role) for one in (prepared, plain))
        if found != written:
            raise FalseSplice(f"{role} turns are {list(map(text_of, found))!r}")
