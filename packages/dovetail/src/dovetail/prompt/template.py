"""Chat templates in a sandbox, with the functions that Hugging Face provides and nothing more."""

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
    """The template itself rejected a conversation, with `raise_exception`."""


class _GenerationExtension(Extension):
    """Supports `{% generation %}`, which marks training text; in a prompt it is a scope."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> Node | list[Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return Scope(body, lineno=line)


class CachedJsonObject(dict[str, Any]):
    """An object whose JSON is encoded once for all prompts, as long as it does not change."""

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
    """Create the sandbox. Mutable values are allowed: several templates append to lists."""
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
    """Copy a JSON value with all its objects and lists."""
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

    What it renders: `renders_*`, `many_calls`, `text_with_calls` and `text_with_reasoning` (in one
    turn), `trims` (white space around an assistant's text), `shows_ids` (of calls).
    What it accepts: `arguments`, `content`, `null_content` (as no text), `wants_null` (calls are
    rendered only with null content), `system`, `developer`, `consecutive_users`, `call_ids`.
    `system_inside` is "dropped" too where such a message is moved to the front.
    Reasoning: `reasoning_fields` may all be set at once; with `thinking_parts` it is a part of the
    content; with neither, the family's markers in the text are all that is left.
    `keeps_*` say what remains of earlier turns: of the reasoning in a running tool loop, of that
    before a new user turn (with tools, and `keeps_without_tools`), of a history without reasoning,
    which a few templates rewrite too, and of the prompt before a turn. `drops_at_final`: a loop's
    reasoning survives user text, but not the final message. `keep_switches` are switches under
    which reasoning survives a user turn.
    `thinking_switches` turn thinking on and off: what to pass for True and for False. `efforts`
    are the levels that `effort_switch` takes. `reasoning_opener` is the end of the generation
    prompt after a user turn that leaves a reasoning span open.
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

    `variables` are the variables that it reads; any other switch changes nothing.
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
