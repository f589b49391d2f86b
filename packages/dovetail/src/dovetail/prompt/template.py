"""Chat templates in a sandbox, with what Hugging Face gives them and nothing more."""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from jinja2 import Template, TemplateError
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

    __slots__ = ("_snapshot", "_json_by_options")

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
