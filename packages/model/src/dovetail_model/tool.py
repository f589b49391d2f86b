"""Tool definitions as the model sees them, and the tool choice."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec


class ToolSpec(msgspec.Struct, frozen=True):
    """One tool.

    `shown_as` is the name that the model sees if it differs from `name`: namespaces are flattened
    for the model and restored in its calls.
    A `custom` tool takes free text. The model sees a function with one string parameter, `input`,
    and the parser unwraps it.
    A `deferred` tool is not in the tool list: the model reads it where a turn refers to it.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = msgspec.field(default_factory=dict)
    namespace: str | None = None
    shown_as: str | None = None
    custom: bool = False
    grammar: str | None = None
    strict: bool = False
    deferred: bool = False

    @property
    def key(self) -> tuple[str | None, str]:
        """Namespace and name, which identify the tool in a request."""
        return self.namespace, self.name

    @property
    def model_name(self) -> str:
        """The tool's name in the prompt and in the model's output."""
        return self.shown_as or self.name

    @property
    def model_parameters(self) -> Mapping[str, Any]:
        """The tool's parameter schema in the prompt.

        Few engines enforce the grammar of free text, so the schema's description contains it.
        """
        if not self.custom:
            return self.parameters
        text = {"type": "string"}
        if self.grammar:
            text["description"] = f"Plain text in the form of this grammar:\n{self.grammar}"
        return {"type": "object", "properties": {"input": text}, "required": ["input"]}


class ToolChoice(msgspec.Struct, frozen=True):
    """Whether the model may, must or must not call tools. With `named` it must call `name`.

    `allowed` are the names, as the model sees them, of the only tools that it may call.
    """

    mode: Literal["auto", "none", "required", "named"] = "auto"
    name: str | None = None
    parallel: bool = True
    allowed: frozenset[str] | None = None
