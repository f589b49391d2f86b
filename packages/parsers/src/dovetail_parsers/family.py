"""What a family is: its names, its formats, the models that speak it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from dovetail_model import OutputBlock
from dovetail_parsers.grammar import ReasoningFormat, ToolFormat


@dataclass(frozen=True)
class Family:
    """One way in which models write calls or thoughts, or both.

    `tool_names` and `reasoning_names` are the parser names that mean this family, its own first.
    `models` maps patterns of model ids to the reasoning parser those models use with it.
    `marks` are strings that a chat template of this family contains, all of them;
    `thought_marks` more of them, where only some of its models think.
    `unified` formats write thoughts and calls in one table and pair only with themselves; their
    headers cannot be run backwards, so they bring their own writer.
    """

    name: str
    sample: str
    tool_names: tuple[str, ...] = ()
    reasoning_names: tuple[str, ...] = ()
    pairs_with: str | None = None
    models: Mapping[str, str | None] = field(default_factory=dict)
    template_markers: tuple[str, ...] = ()
    reasoning_template_markers: tuple[str, ...] = ()
    unified: Callable[[Sequence[OutputBlock]], str] | None = field(default=None, repr=False)
    tools: ToolFormat | None = field(default=None, repr=False)
    reasoning: ReasoningFormat | None = field(default=None, repr=False)

    @property
    def aliases(self) -> tuple[str, ...]:
        """Every other name under which the family is known."""
        names = dict.fromkeys((*self.tool_names, *self.reasoning_names))
        return tuple(name for name in names if name != self.name)

    @property
    def tool_parser(self) -> str | None:
        """The name to give as the tool parser."""
        return self.tool_names[0] if self.tool_names else None

    @property
    def reasoning_parser(self) -> str | None:
        """The name to give as the reasoning parser beside it; None for models that do not think."""
        if self.pairs_with is None and not self.tool_names:
            return self.reasoning_names[0]
        return self.pairs_with
