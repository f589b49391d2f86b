"""Context management: what a request lets the server remove from the model's view of a history."""

from typing import ClassVar, Literal

import msgspec

ReasoningRetention = Literal["template", "tool-turns", "all", "none"]
"""Which finished turns keep their reasoning in the prompt after the next user turn.

`template`: as the chat template decides. `tool-turns`: the turns with tool calls. `all`: all turns.
`none`: no turn. The running tool loop always keeps its reasoning.
"""


class EditTrigger(msgspec.Struct, frozen=True):
    """The size of a context above which an edit is made."""

    kind: Literal["input_tokens", "tool_uses"]
    value: int


class ClearThinking(msgspec.Struct, frozen=True, tag="clear_thinking_20251015"):
    """Remove the reasoning of all but the last `keep` assistant turns with reasoning."""

    type: ClassVar[Literal["clear_thinking_20251015"]] = "clear_thinking_20251015"
    keep: int = 1


class ClearToolUses(msgspec.Struct, frozen=True, tag="clear_tool_uses_20250919"):
    """Replace the results of old tool calls by a short text.

    `trigger`: None means the server's default.
    `keep`: the number of newest calls that stay.
    `clear_at_least`: the number of tokens that an edit must remove at least.
    `exclude_tools`: the tools whose calls stay.
    `clear_inputs`: whether the arguments are removed, too: of all tools, or of the named ones.
    """

    type: ClassVar[Literal["clear_tool_uses_20250919"]] = "clear_tool_uses_20250919"
    trigger: EditTrigger | None = None
    keep: int = 3
    clear_at_least: int = 0
    exclude_tools: tuple[str, ...] = ()
    clear_inputs: bool | tuple[str, ...] = False


class Compact(msgspec.Struct, frozen=True, tag="compact_20260112"):
    """Replace the history by a summary when the prompt exceeds a number of tokens.

    `pause`: whether the response ends after the summary.
    """

    type: ClassVar[Literal["compact_20260112"]] = "compact_20260112"
    trigger_tokens: int | None = None
    instructions: str = ""
    pause: bool = False


ContextEdit = ClearThinking | ClearToolUses | Compact


class ContextManagement(msgspec.Struct, frozen=True):
    """The context management that a client requests.

    `edits`: None if the request has no such field; then earlier edits remain in force.
    `summarize`: the response is only a summary of the history; "" for default instructions.
    `truncate`: whether the oldest turns may be dropped if the prompt exceeds the context window.
    """

    edits: tuple[ContextEdit, ...] | None = None
    summarize: str | None = None
    truncate: bool = False


class AppliedEdit(msgspec.Struct, frozen=True, gc=False):
    """The effect of an edit on a prompt: the cleared tool uses or turns, and the removed tokens."""

    type: Literal["clear_thinking_20251015", "clear_tool_uses_20250919"]
    count: int
    tokens: int
