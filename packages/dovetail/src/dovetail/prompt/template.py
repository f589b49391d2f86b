"""Chat templates in a Jinja sandbox, with only the functions that Hugging Face provides."""

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
    """The template rejected a conversation with `raise_exception`."""


class _GenerationExtension(Extension):
    """Supports `{% generation %}`, which marks training text and has no effect in prompts."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> Node | list[Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return Scope(body, lineno=line)


class CachedJsonObject(dict[str, Any]):
    """A dict that caches its JSON until it changes, so that prompts share the encoding."""

    __slots__ = ("_json_by_options", "_snapshot")

    def __init__(self, **items: Any) -> None:
        super().__init__(items)
        self._snapshot: dict[str, Any] = {}
        self._json_by_options: dict[str, str] = {}

    def _to_json(self, options: dict[str, Any]) -> str:
        if self != self._snapshot:  # a template may modify its input
            self._snapshot, self._json_by_options = _deep_copy(self), {}
        texts, key = (
            self._json_by_options,
            repr(options),
        )  # another thread may put others in their place
        if key not in texts:
            texts[key] = json.dumps(self, default=_json_default, **options)
        return texts[key]


def create_environment(clock: Clock = datetime.now) -> SandboxedEnvironment:
    """Create the sandbox. It allows mutable values, since several templates append to lists."""
    environment = SandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationExtension, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: clock().strftime(form)
    return environment


def compile_template(text: str, clock: Clock = datetime.now) -> Template:
    """Compile a template. Raises jinja2's `TemplateSyntaxError`."""
    return create_environment(clock).from_string(text)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    options: dict[str, Any] = {
        "ensure_ascii": ensure_ascii,
        "indent": indent,
        "separators": separators,
        "sort_keys": sort_keys,
    }
    if isinstance(value, CachedJsonObject):
        return value._to_json(options)
    return json.dumps(value, default=_json_default, **options)


def _deep_copy(value: Any) -> Any:
    """Copy a JSON value with its nested objects and lists."""
    if isinstance(value, dict):
        return {key: _deep_copy(item) for key, item in value.items()}
    return [_deep_copy(item) for item in value] if isinstance(value, list) else value


def _json_default(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} cannot be encoded as JSON")


def _raise_exception(message: str) -> None:
    raise TemplateRejectedError(message)


MessageHandling = Literal["kept", "dropped", "refused"]


@dataclass(frozen=True)
class TemplateProfile:
    """The input that a template accepts and its handling of a history, as found by the probe.

    Rendered content:
    `renders_tools`, `renders_calls`, `renders_results`: whether the template renders these.
    `many_calls`: several calls in one turn.
    `text_with_calls`, `text_with_reasoning`: text next to calls, and next to both in one turn.
    `trims`: whitespace around assistant text is removed.
    `shows_ids`: call ids are rendered.

    Accepted input:
    `arguments`, `content`: the form of call arguments and of message content.
    `null_content`: null content means no text.
    `wants_null`: calls are rendered only with null content.
    `system`, `developer`: the handling of these roles.
    `system_inside`: the handling of a later system message; "dropped" also if it is moved forward.
    `consecutive_users`: consecutive user messages are accepted.
    `call_ids`: the required style of call ids.

    Reasoning:
    `reasoning_fields`: the message fields that the template reads; all may be set.
    `thinking_parts`: reasoning is a part of the content. If neither this nor a field is supported,
    reasoning is written into the text with the markers of the family.

    Earlier turns:
    `keeps_in_loop`: reasoning survives in a running tool loop.
    `keeps_at_user`, `keeps_without_tools`: reasoning survives a new user turn, with and without
    tools.
    `keeps_at_system`: reasoning survives a later system message, such as a notification.
    `keeps_plain`: a history without reasoning is unchanged, which is not so for a few templates.
    `keeps_prompt`: the prompt before a turn is unchanged.
    `drops_at_final`: the reasoning of a loop survives user text, but not the final message.
    `keep_switches`: switches under which reasoning survives a user turn.

    Switches:
    `thinking_switches`: the switches that turn thinking on (True) and off (False).
    `efforts`: the levels that `effort_switch` accepts.
    `reasoning_opener`: the end of the generation prompt after a user turn if it leaves a reasoning
    span open.
    """

    renders_tools: bool = True
    renders_calls: bool = True
    renders_results: bool = True
    many_calls: bool = True
    text_with_calls: bool = True
    text_with_reasoning: bool = True
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
    reasoning_opener: str = ""
    keeps_in_loop: bool = False
    keeps_at_user: bool = False
    keeps_at_system: bool = False
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
    """The template failed to render a conversation."""


class ChatTemplate:
    """A compiled template with the special tokens that it may use, such as `bos_token`.

    `variables` are the variables that it reads; other switches have no effect.
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
        """Render a prompt. `switches` are the template's own variables (`enable_thinking`)."""
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
