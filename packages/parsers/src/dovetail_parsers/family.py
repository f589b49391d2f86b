"""A family: its parser names, its formats, and the models that use it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from dovetail_model import OutputBlock, ReasoningRetention
from dovetail_parsers.grammar import ReasoningFormat, ToolFormat


@dataclass(frozen=True)
class Family:
    """A format in which models write tool calls, reasoning, or both.

    `tool_names` and `reasoning_names` are the parser names of this family, its own name first.
    `models` maps patterns of model ids to the reasoning parser that those models use with it.
    `template_markers` are strings that a chat template of this family contains, all of them;
    `reasoning_template_markers` are further ones if only some of its models reason.
    `unified` formats write reasoning and calls in one table and pair only with themselves; their
    headers cannot be generated from the table, so they provide their own writer.
    `retention` states which turns keep their reasoning if neither the server nor the request does;
    None leaves it to the chat template.
    """

    name: str
    sample: str
    tool_names: tuple[str, ...] = ()
    reasoning_names: tuple[str, ...] = ()
    pairs_with: str | None = None
    models: Mapping[str, str | None] = field(default_factory=dict)
    template_markers: tuple[str, ...] = ()
    reasoning_template_markers: tuple[str, ...] = ()
    retention: ReasoningRetention | None = None
    unified: Callable[[Sequence[OutputBlock]], str] | None = field(default=None, repr=False)
    tools: ToolFormat | None = field(default=None, repr=False)
    reasoning: ReasoningFormat | None = field(default=None, repr=False)

    @property
    def aliases(self) -> tuple[str, ...]:
        """All other parser names of the family."""
        names = dict.fromkeys((*self.tool_names, *self.reasoning_names))
        return tuple(name for name in names if name != self.name)

    @property
    def tool_parser(self) -> str | None:
        """The name of the tool parser."""
        return self.tool_names[0] if self.tool_names else None

    @property
    def reasoning_parser(self) -> str | None:
        """The reasoning parser to use with it; None for models without reasoning."""
        if self.pairs_with is None and not self.tool_names:
            return self.reasoning_names[0]
        return self.pairs_with
