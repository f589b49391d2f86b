"""What a request demands of the form of its answer, as a constraint that the engine can keep."""

from collections import OrderedDict

import msgspec

from dovetail.catalog import Model
from dovetail.engines.engine import Constraint
from dovetail.preparation import Prepared
from dovetail_parsers import constraint

_MOST = 256


class Guidance:
    """The constraints of a model's requests. A session demands the same again and again."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._made: OrderedDict[tuple[object, ...], tuple[object, Constraint | None]] = (
            OrderedDict()
        )

    def of(self, prepared: Prepared, *, after_thought: bool = False) -> Constraint | None:
        """The constraint; None where nothing is demanded."""
        request = prepared.request
        thinks = self._model.reasoning_parser is not None and request.thinking.enabled is not False
        thinks = thinks and not after_thought
        in_reasoning = prepared.prompt.in_reasoning and not after_thought
        form = msgspec.json.encode((request.tool_choice, request.output))
        key = (id(request.tools), form, thinks, in_reasoning)
        known = self._made.get(key)
        if known is not None and known[0] is request.tools:
            return known[1]
        made = self._make(prepared, thinks, in_reasoning)
        self._made[key] = (request.tools, made)
        if len(self._made) > _MOST:
            self._made.popitem(last=False)
        return made

    def _make(self, prepared: Prepared, thinks: bool, in_reasoning: bool) -> Constraint | None:
        request = prepared.request
        text = constraint(
            self._model.tool_parser,
            self._model.reasoning_parser,
            tools=request.tools,
            choice=request.tool_choice,
            output=request.output,
            in_reasoning=in_reasoning,
            thinks=thinks,
        )
        return None if text is None else Constraint("gbnf", text)
