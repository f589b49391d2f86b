"""What a chat template can do, as its probe found out. Nothing here is read from its text."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

MessageHandling = Literal["kept", "dropped", "refused"]


@dataclass(frozen=True)
class TemplateProfile:
    """What a template accepts and what it does with a history, under the switches of the probe.

    What it shows: `renders_*`, `many_calls`, `text_with_calls` (both, in one turn), `trims` (white
    space around an assistant's text), `shows_ids` (of calls).
    What it takes: `arguments`, `content`, `null_content` (as no text), `wants_null` (calls are
    shown only beside null content), `system`, `developer`, `consecutive_users`, `call_ids`.
    `system_inside` is "dropped" too where such a message is moved to the front.
    Thoughts: `reasoning_fields` may all be set at once; with `thinking_parts` they are parts of the
    content; with neither, the family's markers in the text are all that is left.
    `keeps_*` say what stays of earlier turns: of the thoughts in a running tool loop, of those
    before a new user turn (with tools, and `keeps_without_tools`), of a history without thoughts,
    which a few templates rewrite too, and of the prompt that asked for a turn. `drops_at_final`:
    a loop's thoughts survive user text, but not the answer. `keep_switches` are switches under
    which thoughts survive a user turn.
    `thinking_switches` turn thinking on and off: what to pass for True and for False. `efforts`
    are the levels that `effort_switch` takes. `opens_thought` is the end of the generation prompt
    behind a user turn that leaves a thought open.
    """

    renders_tools: bool = True
    renders_calls: bool = True
    renders_results: bool = True
    many_calls: bool = True
    text_with_calls: bool = True
    text_beside_thought: bool = True
    arguments: Literal["object", "string"] = "object"
    content: Literal["string", "parts"] = "string"
    null_content: bool = True
    wants_null: bool = False
    trims: bool = False
    reasoning_fields: tuple[str, ...] = ()
    thinking_parts: bool = False
    system: MessageHandling = "kept"
    system_inside: MessageHandling = "kept"
    developer: MessageHandling = "refused"
    consecutive_users: bool = True
    call_ids: Literal["any", "nine", "kimi"] = "any"
    shows_ids: bool = False
    opens_thought: str = ""
    keeps_in_loop: bool = False
    keeps_at_user: bool = False
    keeps_without_tools: bool = False
    keeps_plain: bool = True
    keeps_prompt: bool = True
    drops_at_final: bool = False
    keep_switches: Mapping[str, Any] = field(default_factory=dict)
    thinking_switches: Mapping[bool, Mapping[str, Any]] = field(default_factory=dict)
    effort_switch: str = ""
    efforts: tuple[str, ...] = ()
    budget_switch: str = ""
    interleaves: bool = False
    warnings: tuple[str, ...] = ()
