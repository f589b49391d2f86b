"""Sections of the system text that a harness renews when it resumes a session.

Claude Code ends its system text with the state of the Git repository, and computes it again when it
resumes. The system text is at the start of the prompt, so the change would invalidate the whole
prefix. The earlier section stays where the model read it, and the new one is appended at the end.

This applies only to sections with a known heading: a client that changes its instructions means the
model to read the new ones. If anything else in the system text changes, or if the appended sections
are longer than what has to be prefilled again, the head is rendered with the new section.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec

from dovetail.ledger.turn_digest import compute_digest
from dovetail.prompt.conversation_state import (
    ConversationState,
    PromptAddition,
    SystemSection,
)
from dovetail_model import Block, TextBlock, ToolSpec

_HEADING = "gitStatus"
_HEADING_PREFIXES = ("", "# ")  # of the line
_NEXT_HEADING = "\n# "
_CHANGED_TEXT = "This part of the system prompt has changed:"
_MAX_CACHED_CHARS = 1 << 20

Blocks = tuple[Block, ...]


class SectionView(NamedTuple):
    """The system text as the model reads it, and the state to record."""

    system: Blocks
    state: ConversationState
    notes: tuple[str, ...] = ()


class _Split(NamedTuple):
    """A system text at its section: the block, and the section's place in the block's text."""

    block: int
    start: int
    end: int
    rest: bytes


def keep_section(
    system: Blocks,
    state: ConversationState,
    tools: Sequence[ToolSpec],
    known_chars: int,
    *,
    can_announce: bool,
) -> SectionView:
    """Keep a section that has changed as the model read it, and announce its new text.

    `tools` are those of the head. `known_chars` is the length of the conversation that a new head
    would invalidate, or 0 if the head is new anyway. Without `can_announce`, the prompt ends with a
    turn that the model continues.
    """
    split = _split(system)
    if split is None:
        return SectionView(system, _without_section(state))
    text = _section(system, split)
    recorded = state.section
    if recorded is None or recorded.rest != split.rest or not known_chars:
        return _use_new(system, state, SystemSection(text, text, split.rest))
    shown = _replace_section(system, split, recorded.shown)
    if text == recorded.newest or not can_announce:
        return SectionView(shown, state)
    addition = PromptAddition("moved_text", f"{_CHANGED_TEXT}\n\n{text.strip()}")
    additions = (*state.additions, addition)
    appended = sum(len(one.text) for one in additions if one.kind == "moved_text")
    if appended > known_chars + sum(len(msgspec.json.encode(tool)) for tool in tools):
        return _use_new(system, state, SystemSection(text, text, split.rest))
    section = msgspec.structs.replace(recorded, newest=text)
    new_state = msgspec.structs.replace(state, section=section, additions=additions)
    return SectionView(shown, new_state, ("system_section_announced",))


def _use_new(system: Blocks, state: ConversationState, section: SystemSection) -> SectionView:
    """Render the head with the new section, which makes earlier announcements unnecessary."""
    return SectionView(system, msgspec.structs.replace(_without_section(state), section=section))


def _without_section(state: ConversationState) -> ConversationState:
    if state.section is None:
        return state
    additions = tuple(one for one in state.additions if one.kind != "moved_text")
    return msgspec.structs.replace(state, section=None, additions=additions)


def _split(system: Blocks) -> _Split | None:
    """Find the section. The result is cached, because a system text is long and repeated."""
    for at, block in enumerate(system):
        if isinstance(block, TextBlock) and _HEADING in block.text:
            chars = sum(len(one.text) for one in system if isinstance(one, TextBlock))
            split = _cached_split if chars <= _MAX_CACHED_CHARS else _split_block
            return split(system, at)
    return None


def _split_block(system: Blocks, at: int) -> _Split | None:
    block = system[at]
    assert isinstance(block, TextBlock)
    start = _find_heading(block.text)
    if start is None:
        return None
    end = block.text.find(_NEXT_HEADING, start)
    end = len(block.text) if end < 0 else end
    rest = _replace_section(system, _Split(at, start, end, b""), "")
    return _Split(at, start, end, compute_digest(msgspec.json.encode(rest)))


_cached_split = lru_cache(32)(_split_block)


def _find_heading(text: str) -> int | None:
    at = text.find(_HEADING)
    while at >= 0:
        line = text.rfind("\n", 0, at) + 1
        if text[line:at] in _HEADING_PREFIXES:
            return line
        at = text.find(_HEADING, at + 1)
    return None


def _section(system: Blocks, split: _Split) -> str:
    block = system[split.block]
    assert isinstance(block, TextBlock)
    return block.text[split.start : split.end]


def _replace_section(system: Blocks, split: _Split, section: str) -> Blocks:
    block = system[split.block]
    assert isinstance(block, TextBlock)
    text = block.text[: split.start] + section + block.text[split.end :]
    if text == block.text:
        return system
    return (*system[: split.block], TextBlock(text), *system[split.block + 1 :])
