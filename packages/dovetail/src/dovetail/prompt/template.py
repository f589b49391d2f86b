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


class TemplateRefusal(TemplateError):
    """The template itself refused a conversation, with `raise_exception`."""


class _Generation(Extension):
    """`{% generation %}` marks the assistant's part for training; in a prompt it is a scope."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> Node | list[Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return Scope(body, lineno=line)


class Written(dict[str, Any]):
    """An object whose JSON is written once for all prompts, for as long as it does not change."""

    __slots__ = ("_as_it_was", "_texts")

    def __init__(self, **items: Any) -> None:
        super().__init__(items)
        self._as_it_was: dict[str, Any] = {}
        self._texts: dict[str, str] = {}

    def _written(self, how: dict[str, Any]) -> str:
        if self != self._as_it_was:  # a template may change what it is given
            self._as_it_was, self._texts = _copy(self), {}
        texts, key = self._texts, repr(how)  # another thread may put others in their place
        if key not in texts:
            texts[key] = json.dumps(self, default=_plain, **how)
        return texts[key]


def environment(clock: Clock = datetime.now) -> SandboxedEnvironment:
    """The sandbox. Mutable values are allowed: several templates append to lists."""
    made = SandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    made.filters["tojson"] = _tojson
    made.globals["raise_exception"] = _refuse
    made.globals["strftime_now"] = lambda form: clock().strftime(form)
    return made


def compile_template(text: str, clock: Clock = datetime.now) -> Template:
    """The compiled template. Raises jinja2's `TemplateSyntaxError` for one that is none."""
    return environment(clock).from_string(text)


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
    if isinstance(value, Written):
        return value._written(how)
    return json.dumps(value, default=_plain, **how)


def _copy(value: Any) -> Any:
    """A JSON value whose objects and lists nobody else has."""
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _refuse(message: str) -> None:
    raise TemplateRefusal(message)
