"""What a request demands of the form of its answer, as a constraint that the engine can keep."""

from dataclasses import dataclass
from typing import Literal

import msgspec

from dovetail.engines.engine import Constraint, ConstraintSyntax
from dovetail.models.loader import Model
from dovetail.pipeline.preparation import PreparedRequest
from dovetail.storage.lru import LruCache
from dovetail_model import Unsupported
from dovetail_parsers import build_guided_grammar

#: How far an answer is when an engine takes it up: before all, inside its thought, behind it.
OutputPhase = Literal["start", "thought", "answer"]

#: The engine has no way to keep an answer to its form.
UNENFORCED_NOTE = "guided:unenforced"

_MAX_CACHED = 256


@dataclass(frozen=True)
class OutputConstraint:
    """What is asked of an answer's form. `notes` tell what of it nobody enforces."""

    constraint: Constraint | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_unconstrained(self) -> bool:
        """Whether any answer will do."""
        return self.constraint is None


class ConstraintBuilder:
    """The demands of a model's requests. A session demands the same again and again."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._cache: LruCache[tuple[object, ...], tuple[object, OutputConstraint]] = LruCache(
            _MAX_CACHED
        )

    def build(
        self,
        prepared: PreparedRequest,
        syntaxes: tuple[ConstraintSyntax, ...],
        phase: OutputPhase = "start",
    ) -> OutputConstraint:
        """The demand, in the first of the notations that it can be written in."""
        request = prepared.request
        thinks = phase != "answer" and self._may_reason(prepared)
        in_reasoning = phase == "thought" or (phase == "start" and prepared.prompt.in_reasoning)
        form = msgspec.json.encode((request.tool_choice, request.output))
        key = (id(request.tools), form, syntaxes, thinks, in_reasoning)
        known = self._cache.peek(key)
        if known is not None and known[0] is request.tools:
            return known[1]
        made = self._compile(prepared, syntaxes, thinks, in_reasoning)
        self._cache.put(key, (request.tools, made))
        return made

    def _may_reason(self, prepared: PreparedRequest) -> bool:
        """Whether the model may open a thought: not if it was told not to, by whomever."""
        model = self._model
        if model.reasoning_parser is None or prepared.request.thinking.enabled is False:
            return False
        closing = model.tokenizer.decode(model.reasoning_end_ids).strip()
        return not closing or closing not in (prepared.prompt.opening or "")

    def _compile(
        self,
        prepared: PreparedRequest,
        syntaxes: tuple[ConstraintSyntax, ...],
        may_reason: bool,
        in_reasoning: bool,
    ) -> OutputConstraint:
        request, model = prepared.request, self._model
        # A schema alone cannot say what stands around the arguments of a call.
        written = [syntax for syntax in syntaxes if syntax != "json_schema"]
        try:
            made = build_guided_grammar(
                model.tool_parser,
                model.reasoning_parser,
                tools=request.tools,
                choice=request.tool_choice,
                output=request.output,
                in_reasoning=in_reasoning,
                allow_reasoning=may_reason,
                syntax=written[0] if written else "gbnf",
                tokens=model.tokenizer.controls,
            )
        except Unsupported:
            if written:
                raise
            return OutputConstraint(notes=(UNENFORCED_NOTE,))
        if made is None:
            return OutputConstraint()
        if not written:
            return OutputConstraint(notes=(UNENFORCED_NOTE,))
        notes = tuple(f"guided:{note}" for note in made.notes)
        return OutputConstraint(Constraint(made.syntax, made.text), notes)
