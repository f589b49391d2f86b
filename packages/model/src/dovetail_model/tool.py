"""Tools as the model is offered them, and how it may choose among them."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec


class ToolSpec(msgspec.Struct, frozen=True):
    """One tool.

    `shown_as` is the name the model sees where it differs from `name`: namespaces are flattened
    for the model and restored in its calls. A `custom` tool takes free text; the model is shown
    a function with one string, `input`, and the parser unwraps it.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = msgspec.field(default_factory=dict)
    namespace: str | None = None
    shown_as: str | None = None
    custom: bool = False
    grammar: str | None = None
    strict: bool = False

    @property
    def model_name(self) -> str:
        """The name that stands in the prompt and in the model's output."""
        return self.shown_as or self.name

    @property
    def model_parameters(self) -> Mapping[str, Any]:
        """The schema that stands in the prompt.

        Few engines enforce the grammar of free text, so it is part of the description.
        """
        if not self.custom:
            return self.parameters
        text = {"type": "string"}
        if self.grammar:
            text["description"] = f"Plain text in the form of this grammar:\n{self.grammar}"
        return {"type": "object", "properties": {"input": text}, "required": ["input"]}


class ToolChoice(msgspec.Struct, frozen=True):
    """Whether the model must, may or must not call; `named` calls the tool `name`."""

    mode: Literal["auto", "none", "required", "named"] = "auto"
    name: str | None = None
    parallel: bool = True
