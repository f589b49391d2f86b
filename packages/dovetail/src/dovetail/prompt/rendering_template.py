"""A chat template as the rest of the application holds it: messages in, text out."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import Template, TemplateError, meta

from dovetail.prompt.template import Clock, compile_template, create_environment

ChatMessages = Sequence[Mapping[str, Any]]


class RenderError(Exception):
    """The template could not render this conversation."""


class ChatTemplate:
    """A compiled template with the special tokens that it may name (`bos_token` and the like).

    `reads` are the variables that it looks at; any other switch changes nothing.
    """

    __slots__ = ("_compiled", "variables", "special_tokens", "text")

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
