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
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_plain,
    )


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _refuse(message: str) -> None:
    raise TemplateRefusal(message)
