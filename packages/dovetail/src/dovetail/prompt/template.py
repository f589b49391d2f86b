"""Chat templates in a sandbox, with what Hugging Face gives them and nothing more."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from jinja2 import Template, TemplateError, meta
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node, Scope
from jinja2.parser import Parser
from jinja2.sandbox import SandboxedEnvironment

Clock = Callable[[], datetime]


class TemplateRejectedError(TemplateError):
    """The template itself refused a conversation, with `raise_exception`."""


class _GenerationExtension(Extension):
    """`{% generation %}` marks the assistant's part for training; in a prompt it is a scope."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> Node | list[Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return Scope(body, lineno=line)


class CachedJsonObject(dict[str, Any]):
    """An object whose JSON is written once for all prompts, for as long as it does not change."""

    __slots__ = ("_json_by_options", "_snapshot")

    def __init__(self, **items: Any) -> None:
        super().__init__(items)
        self._snapshot: dict[str, Any] = {}
        self._json_by_options: dict[str, str] = {}

    def _to_json(self, options: dict[str, Any]) -> str:
        if self != self._snapshot:  # a template may change what it is given
            self._snapshot, self._json_by_options = _deep_copy(self), {}
        texts, key = (
            self._json_by_options,
            repr(options),
        )  # another thread may put others in their place
        if key not in texts:
            texts[key] = json.dumps(self, default=_json_default, **options)
        return texts[key]


def create_environment(clock: Clock = datetime.now) -> SandboxedEnvironment:
    """The sandbox. Mutable values are allowed: several templates append to lists."""
    made = SandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationExtension, loopcontrols]
    )
    made.filters["tojson"] = _tojson
    made.globals["raise_exception"] = _raise_exception
    made.globals["strftime_now"] = lambda form: clock().strftime(form)
    return made


def compile_template(text: str, clock: Clock = datetime.now) -> Template:
    """The compiled template. Raises jinja2's `TemplateSyntaxError` for one that is none."""
    return create_environment(clock).from_string(text)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    how: dict[str, Any] = {
        "ensure_ascii": ensure_ascii,
        "indent": indent,
        "separators": separators,
        "sort_keys": sort_keys,
    }
    if isinstance(value, CachedJsonObject):
        return value._to_json(how)
    return json.dumps(value, default=_json_default, **how)


def _deep_copy(value: Any) -> Any:
    """A JSON value whose objects and lists nobody else has."""
    if isinstance(value, dict):
        return {key: _deep_copy(item) for key, item in value.items()}
    return [_deep_copy(item) for item in value] if isinstance(value, list) else value


def _json_default(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _raise_exception(message: str) -> None:
    raise TemplateRejectedError(message)


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


ChatMessages = Sequence[Mapping[str, Any]]


class RenderError(Exception):
    """The template could not render this conversation."""


class ChatTemplate:
    """A compiled template with the special tokens that it may name (`bos_token` and the like).

    `reads` are the variables that it looks at; any other switch changes nothing.
    """

    __slots__ = ("_compiled", "special_tokens", "text", "variables")

    def __init__(
        self,
        text: str,
        special_tokens: Mapping[str, str] | None = None,
        clock: Clock = datetime.now,
    ) -> None:
        self.text = text
        self.special_tokens = dict(special_tokens or {})
        self._compiled: Template = compile_template(text, clock)
        self.variables = frozenset(meta.find_undeclared_variables(create_environment().parse(text)))

    def render(
        self,
        messages: ChatMessages,
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        switches: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt as text. `switches` are the template's own variables (`enable_thinking`)."""
        values: dict[str, Any] = {**self.special_tokens, **(switches or {})}
        try:
            return self._compiled.render(
                messages=messages,
                tools=tools or None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **{k: v for k, v in values.items() if k not in _RESERVED_VARIABLES},
            )
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError, IndexError) as e:
            raise RenderError(f"{type(e).__name__}: {e}") from e
        except (RecursionError, OverflowError, ZeroDivisionError) as e:
            raise RenderError(f"{type(e).__name__}: {e}") from e


_RESERVED_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
