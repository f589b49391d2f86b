"""A chat template as the rest of the application holds it: messages in, text out."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import Template, TemplateError, meta

from dovetail.prompt.template import Clock, compile_template, environment

Messages = Sequence[Mapping[str, Any]]


class RenderError(Exception):
    """The template could not render this conversation."""


class ChatTemplate:
    """A compiled template with the special tokens that it may name (`bos_token` and the like).

    `reads` are the variables that it looks at; any other switch changes nothing.
    """

    __slots__ = ("_compiled", "reads", "specials", "text")

    def __init__(
        self, text: str, specials: Mapping[str, str] | None = None, clock: Clock = datetime.now
    ) -> None:
        self.text = text
        self.specials = dict(specials or {})
        self._compiled: Template = compile_template(text, clock)
        self.reads = frozenset(meta.find_undeclared_variables(environment().parse(text)))

    def render(
        self,
        messages: Messages,
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        generation: bool = True,
        switches: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt as text. `switches` are the template's own variables (`enable_thinking`)."""
        values: dict[str, Any] = {**self.specials, **(switches or {})}
        try:
            return self._compiled.render(
                messages=messages,
                tools=tools or None,
                documents=None,
                add_generation_prompt=generation,
                **{k: v for k, v in values.items() if k not in _OWN},
            )
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError, IndexError) as e:
            raise RenderError(f"{type(e).__name__}: {e}") from e
        except (RecursionError, OverflowError, ZeroDivisionError) as e:
            raise RenderError(f"{type(e).__name__}: {e}") from e


_OWN = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
