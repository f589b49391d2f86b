"""What a request demands of the form of its answer, as a constraint that the engine can keep."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

import msgspec

from dovetail.engines.engine import Constraint, ConstraintSyntax
from dovetail.models.loader import Model
from dovetail.pipeline.preparation import Prepared
from dovetail_model import Unsupported
from dovetail_parsers import guide

#: How far an answer is when an engine takes it up: before all, inside its thought, behind it.
Place = Literal["start", "thought", "answer"]

#: The engine has no way to keep an answer to its form.
UNENFORCED = "guided:unenforced"

_MOST = 256


@dataclass(frozen=True)
class Demand:
    """What is asked of an answer's form. `notes` tell what of it nobody enforces."""

    constraint: Constraint | None = None
    notes: tuple[str, ...] = ()

    @property
    def free(self) -> bool:
        """Whether any answer will do."""
        return self.constraint is None


class Guidance:
    """The demands of a model's requests. A session demands the same again and again."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._made: OrderedDict[tuple[object, ...], tuple[object, Demand]] = OrderedDict()

    def of(
        self, prepared: Prepared, syntaxes: tuple[ConstraintSyntax, ...], place: Place = "start"
    ) -> Demand:
        """The demand, in the first of the notations that it can be written in."""
        request = prepared.request
        thinks = place != "answer" and self._may_think(prepared)
        in_reasoning = place == "thought" or (place == "start" and prepared.prompt.in_reasoning)
        form = msgspec.json.encode((request.tool_choice, request.output))
        key = (id(request.tools), form, syntaxes, thinks, in_reasoning)
        known = self._made.get(key)
        if known is not None and known[0] is request.tools:
            return known[1]
        made = self._make(prepared, syntaxes, thinks, in_reasoning)
        self._made[key] = (request.tools, made)
        if len(self._made) > _MOST:
            self._made.popitem(last=False)
        return made

    def _may_think(self, prepared: Prepared) -> bool:
        """Whether the model may open a thought: not if it was told not to, by whomever."""
        model = self._model
        if model.reasoning_parser is None or prepared.request.thinking.enabled is False:
            return False
        closing = model.tokenizer.decode(model.reasoning_end_ids).strip()
        return not closing or closing not in (prepared.prompt.opening or "")

    def _make(
        self, prepared: Prepared, syntaxes: tuple[ConstraintSyntax, ...], thinks: bool, in_reasoning: bool
    ) -> Demand:
        request, model = prepared.request, self._model
        # A schema alone cannot say what stands around the arguments of a call.
        written = [syntax for syntax in syntaxes if syntax != "json_schema"]
        try:
            made = guide(
                model.tool_parser,
                model.reasoning_parser,
                tools=request.tools,
                choice=request.tool_choice,
                output=request.output,
                in_reasoning=in_reasoning,
                thinks=thinks,
                syntax=written[0] if written else "gbnf",
                tokens=model.tokenizer.controls,
            )
        except Unsupported:
            if written:
                raise
            return Demand(notes=(UNENFORCED,))
        if made is None:
            return Demand()
        if not written:
            return Demand(notes=(UNENFORCED,))
        notes = tuple(f"guided:{note}" for note in made.notes)
        return Demand(Constraint(made.syntax, made.text), notes)
