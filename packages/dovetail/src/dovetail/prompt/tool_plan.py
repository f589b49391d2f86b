"""Which tools the head of a prompt shows, and what the end of the prompt states about changes.

The head keeps the tools and the order of the session's first prompt: every change there would
invalidate the whole prefix. A tool that arrives later is shown where the client refers to it, or
else at the end of the prompt, and stays there. A tool that is no longer declared remains in the
head, and the end of the prompt states that it is not available.

A new head replaces all of this when it is cheaper: when the definitions and notices that it makes
unnecessary are longer than what has to be prefilled again, which is the conversation and the head
from the first tool that differs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec

from dovetail.ledger.turn_digest import changes_tools, compute_digest
from dovetail.prompt.appended_text import can_append
from dovetail.prompt.conversation_state import (
    ConversationState,
    PromptAddition,
    ToolSignature,
)
from dovetail.prompt.moved_content import list_texts
from dovetail.prompt.tool_notation import ToolNotation
from dovetail.prompt.tool_references import LoadedTools, ReferenceReader
from dovetail.storage.lru import LruCache
from dovetail_model import ToolSpec, Turn

Tools = tuple[ToolSpec, ...]

_MAX_CACHED_BYTES = 32 << 20  # of definitions
_MAX_CACHED_LISTS = 512
_HEAD_LOST = "tool_head_lost"
_HEAD_REPLACED = "tool_head_replaced"
_ADDED_TEXT = "These tools are available from now on:"
_CHANGED_TEXT = "The definitions of these tools have changed:"
_AGAIN_TEXT = "These tools are available again:"
_REMOVED_TEXT = "These tools are no longer available:"


@dataclass(frozen=True)
class ToolPlan:
    """The tools of one prompt.

    `head`: the tools in the head.
    `callable_tools`: the tools that the model may call.
    `turns`: the turns, with definitions in place of references.
    `state`: the state to record.
    """

    head: Tools
    callable_tools: Tools
    turns: tuple[Turn, ...]
    state: ConversationState
    notes: tuple[str, ...] = ()

    @property
    def is_head_replaced(self) -> bool:
        """Whether the head differs from the recorded one."""
        return _HEAD_LOST in self.notes or _HEAD_REPLACED in self.notes


class _DeclaredTools(NamedTuple):
    """The tools of a request, and those of them that belong to the head."""

    tools: Tools
    head: Tools
    signatures: tuple[ToolSignature, ...]


class _Changes(NamedTuple):
    """How the available tools differ from those that the model knows of."""

    added: list[ToolSpec]
    changed: list[ToolSpec]
    again: list[str]
    removed: list[str]


class ToolPlanner:
    """Plans the tools of the prompts of one model. Its only state is caches."""

    def __init__(self, notation: ToolNotation) -> None:
        self._notation = notation
        self._declared: LruCache[int, _DeclaredTools] = LruCache(_MAX_CACHED_LISTS)
        # The same tools give the same tuple, by whose identity other caches look up.
        self._tuples: LruCache[tuple[int, ...], Tools] = LruCache(_MAX_CACHED_LISTS)
        # Digest -> definition, for heads with tools that a client no longer declares.
        self._definitions: LruCache[bytes, ToolSpec] = LruCache(
            max_size=_MAX_CACHED_BYTES, size_of=_count_chars
        )

    def plan(
        self,
        tools: Tools,
        turns: tuple[Turn, ...],
        state: ConversationState,
        known_chars: int,
        *,
        changed: bool,
    ) -> ToolPlan:
        """Plan the tools of a prompt.

        `known_chars` is the length of the conversation that a new head would invalidate. `changed`
        states whether a turn changes the available tools.
        """
        declared = self._sort(tools)
        loaded = LoadedTools(turns)
        if changed:
            loaded = self._read_references(declared, turns, state)
        if not state.head_tools:
            return self._plan_new_head(declared, loaded, state)
        if declared.signatures == state.head_tools and not (
            loaded.is_changed or state.late_tools or state.withdrawn
        ):
            return ToolPlan(declared.head, declared.head, loaded.turns, state, loaded.notes)
        head = self._recorded_head(declared, state)
        if head is None:
            return _add_note(self._plan_new_head(declared, loaded, state), _HEAD_LOST)
        plan = self._plan_recorded_head(head, declared, loaded, state)
        if _is_new_head_cheaper(plan, known_chars):
            return _add_note(self._plan_new_head(declared, loaded, state), _HEAD_REPLACED)
        return plan

    def describe_missing(
        self, state: ConversationState, available: Tools, turns: Iterable[Turn]
    ) -> str:
        """Write what these turns lack of the late definitions and notices, or nothing.

        Dropped turns may have contained them. `available` are the tools that the model may call.
        """
        texts = "\n".join(list_texts(turns))
        names = {tool.model_name for tool in available}
        late = (tool for tool in state.late_tools if tool.model_name in names)
        definitions = [
            text for tool in late if (text := self._notation.write(tool)[0]) not in texts
        ]
        notices = [f"{_REMOVED_TEXT} {', '.join(state.withdrawn)}"] if state.withdrawn else []
        newest = {one.kind: one.text for one in state.additions}
        notices += [newest[kind] for kind in ("moved_text", "notice") if kind in newest]
        missing = [text for text in notices if text not in texts]
        added = ["\n".join([_ADDED_TEXT, *definitions])] if definitions else []
        return "\n\n".join([*added, *missing])

    def _sort(self, tools: Tools) -> _DeclaredTools:
        known = self._declared.peek(id(tools))
        if known is not None and known.tools is tools:
            return known
        unique = {tool.key: tool for tool in tools}  # a repeated tool keeps its first position
        head = tuple(tool for tool in unique.values() if not tool.deferred)
        head = tools if head == tools else head
        declared = _DeclaredTools(tools, head, tuple(map(self._sign, head)))
        self._declared.put(id(tools), declared)
        return declared

    def _sign(self, tool: ToolSpec) -> ToolSignature:
        signature = ToolSignature(tool.model_name, digest_tool(tool))
        self._definitions.put(signature.digest, tool)
        return signature

    def _read_references(
        self, declared: _DeclaredTools, turns: tuple[Turn, ...], state: ConversationState
    ) -> LoadedTools:
        """Replace references with definitions, and find the tools that they load."""
        reader = ReferenceReader(self._notation, declared.tools, state.late_tools)
        shown = tuple(reader.read(turn) if changes_tools(turn) else turn for turn in turns)
        return reader.result(shown)

    def _plan_new_head(
        self, declared: _DeclaredTools, loaded: LoadedTools, state: ConversationState
    ) -> ToolPlan:
        """Show the declared tools in the head, in the order in which the session listed them."""
        order = {signature.name: at for at, signature in enumerate(state.head_tools)}
        head = declared.head
        if order and declared.signatures != state.head_tools:
            ordered = sorted(head, key=lambda tool: order.get(tool.model_name, len(order)))
            head = self._intern(ordered)
        in_head = {tool.model_name for tool in head}
        late = tuple(t for t in loaded.tools.values() if t.model_name not in in_head)
        new_state = msgspec.structs.replace(
            state,
            head_tools=tuple(map(self._sign, head)),
            late_tools=late,
            old_tools=(),
            withdrawn=(),
            additions=tuple(a for a in state.additions if not a.kind.startswith("tools_")),
        )
        callable_tools = (t for t in (*head, *late) if t.model_name not in loaded.removed)
        return ToolPlan(head, self._intern(callable_tools), loaded.turns, new_state, loaded.notes)

    def _recorded_head(self, declared: _DeclaredTools, state: ConversationState) -> Tools | None:
        """Return the definitions of the recorded head, or None if one of them is lost."""
        if declared.signatures == state.head_tools:
            return declared.head
        known = dict(zip((s.digest for s in declared.signatures), declared.head, strict=True))
        known |= {digest_tool(tool): tool for tool in state.old_tools}
        found = (
            known.get(signature.digest) or self._definitions.get(signature.digest)
            for signature in state.head_tools
        )
        head = tuple(tool for tool in found if tool is not None)
        return self._intern(head) if len(head) == len(state.head_tools) else None

    def _plan_recorded_head(
        self, head: Tools, declared: _DeclaredTools, loaded: LoadedTools, state: ConversationState
    ) -> ToolPlan:
        """Keep the recorded head, and announce changes at the end of the prompt."""
        available = {tool.model_name: tool for tool in (*declared.head, *loaded.tools.values())}
        for name in loaded.removed:
            available.pop(name, None)
        changes = _find_changes(available, loaded, state)
        late = {tool.model_name: tool for tool in state.late_tools}
        late |= {tool.model_name: tool for tool in (*changes.added, *changes.changed)}
        in_head = {tool.model_name: tool for tool in head}
        callable_tools = self._intern(
            available[name] for name in dict.fromkeys((*in_head, *late)) if name in available
        )
        notes = loaded.notes
        new_state = msgspec.structs.replace(state, late_tools=tuple(late.values()))
        # A turn that the model continues cannot be followed by an announcement: the next can.
        if loaded.turns and can_append(loaded.turns[-1]):
            additions = tuple(self._announce(changes, loaded))
            notes += ("tools_announced",) if additions else ()
            withdrawn = {*state.withdrawn, *changes.removed} - available.keys()
            new_state = msgspec.structs.replace(
                new_state,
                old_tools=tuple(t for t in head if available.get(t.model_name) != t),
                withdrawn=tuple(sorted(withdrawn)),
                additions=(*state.additions, *additions),
            )
        return ToolPlan(head, callable_tools, loaded.turns, new_state, notes)

    def _announce(self, changes: _Changes, loaded: LoadedTools) -> Iterable[PromptAddition]:
        """Write the changes that the client's own turns do not show."""
        shown = {tool.model_name for tool in loaded.tools.values()}
        added = [tool for tool in changes.added if tool.model_name not in shown]
        for text, tools in ((_ADDED_TEXT, added), (_CHANGED_TEXT, changes.changed)):
            if tools:
                definitions = (self._notation.write(tool)[0] for tool in tools)
                yield PromptAddition("tools_added", "\n".join([text, *definitions]))
        for kind, text, names in (
            ("tools_added", _AGAIN_TEXT, [name for name in changes.again if name not in shown]),
            ("tools_removed", _REMOVED_TEXT, changes.removed),
        ):
            if names:
                yield PromptAddition(kind, f"{text} {', '.join(names)}")  # type: ignore[arg-type]

    def _intern(self, tools: Iterable[ToolSpec]) -> Tools:
        """Return the same tuple for the same tools."""
        found = tuple(tools)
        key = tuple(map(id, found))
        known = self._tuples.get(key)
        if known is not None and all(a is b for a, b in zip(known, found, strict=True)):
            return known
        self._tuples.put(key, found)
        return found


def digest_tool(tool: ToolSpec) -> bytes:
    """Compute the digest of a definition. When the client loads it is not part of it."""
    return compute_digest(msgspec.json.encode(msgspec.structs.replace(tool, deferred=False)))[:8]


def _find_changes(
    available: Mapping[str, ToolSpec], loaded: LoadedTools, state: ConversationState
) -> _Changes:
    """Compare the available tools with those that the model knows of."""
    known = {signature.name: signature.digest for signature in state.head_tools}
    known |= {tool.model_name: digest_tool(tool) for tool in state.late_tools}
    withdrawn = set(state.withdrawn)
    return _Changes(
        added=[tool for name, tool in available.items() if name not in known],
        changed=[
            tool
            for name, tool in available.items()
            if name in known and known[name] != digest_tool(tool)
        ],
        again=[
            n for n in available if n in withdrawn and known.get(n) == digest_tool(available[n])
        ],
        removed=[n for n in known if n not in {*available, *withdrawn, *loaded.removed}],
    )


def _is_new_head_cheaper(plan: ToolPlan, known_chars: int) -> bool:
    """Return whether a new head removes more characters than it invalidates."""
    waste = _count_waste(plan)
    return waste > known_chars and waste > known_chars + _count_invalidated(plan)


def _count_waste(plan: ToolPlan) -> int:
    """Count the characters that a new head would remove from the prompt."""
    withdrawn = set(plan.state.withdrawn)
    shown = (*plan.head, *plan.state.late_tools)
    definitions = sum(_count_chars(tool) for tool in shown if tool.model_name in withdrawn)
    replaced = sum(
        _count_chars(tool) for tool in plan.state.old_tools if tool.model_name not in withdrawn
    )
    added, removed = (
        sum(len(a.text) for a in plan.state.additions if a.kind == kind)
        for kind in ("tools_added", "tools_removed")
    )
    # A tool that changes several times is announced each time.
    repeated = max(0, added - sum(map(_count_chars, plan.state.late_tools)))
    return definitions + replaced + repeated + removed


def _count_invalidated(plan: ToolPlan) -> int:
    """Count the characters of the unchanged tools that follow a changed one in the head."""
    old = plan.state.old_tools
    first = next((at for at, tool in enumerate(plan.head) if tool in old), len(plan.head))
    return sum(_count_chars(tool) for tool in plan.head[first:] if tool not in old)


def _count_chars(tool: ToolSpec) -> int:
    return len(msgspec.json.encode(tool))


def _add_note(plan: ToolPlan, note: str) -> ToolPlan:
    return replace(plan, notes=(*plan.notes, note))
