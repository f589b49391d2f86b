"""Guided decoding: translate tool choice and output format into a constraint for the engine."""

from dataclasses import dataclass
from typing import Literal

import msgspec

from dovetail.engines.engine import Constraint, ConstraintSyntax
from dovetail.models.loader import Model
from dovetail.pipeline.preparation import PreparedRequest
from dovetail.storage.lru import LruCache
from dovetail_model import Request, Unsupported
from dovetail_parsers import build_guided_grammar

#: The position in the output from which an engine generates.
OutputPhase = Literal["start", "reasoning", "after_reasoning"]

#: What happens to a constraint that the engine cannot enforce: an error, or a note.
GuidedFallback = Literal["reject", "report"]

#: Note for a request with a constraint that the engine cannot enforce.
UNENFORCED_NOTE = "guided:unenforced"

_MAX_CACHED = 256


@dataclass(frozen=True)
class OutputConstraint:
    """The constraint on an output. `notes` name the parts that are not enforced."""

    constraint: Constraint | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_unconstrained(self) -> bool:
        """Whether any output is allowed."""
        return self.constraint is None


class ConstraintBuilder:
    """Builds the constraints of requests to a model, cached because sessions repeat them."""

    def __init__(
        self, model: Model, fallback: GuidedFallback = "reject", *, raw_prompts: bool = False
    ) -> None:
        self._model = model
        self._fallback = fallback
        # Text that continues a raw prompt is not parsed, so it has no reasoning and no calls.
        self._tool_parser = None if raw_prompts else model.tool_parser
        self._reasoning_parser = None if raw_prompts else model.reasoning_parser
        self._cache: LruCache[tuple[object, ...], tuple[object, OutputConstraint]] = LruCache(
            _MAX_CACHED
        )

    def build(
        self,
        prepared: PreparedRequest,
        syntaxes: tuple[ConstraintSyntax, ...],
        phase: OutputPhase = "start",
    ) -> OutputConstraint:
        """Build the constraint in the first syntax that can express it."""
        request = prepared.request
        may_reason = phase != "after_reasoning" and self._may_reason(prepared)
        in_reasoning = phase == "reasoning" or (phase == "start" and prepared.prompt.in_reasoning)
        form = msgspec.json.encode((request.tool_choice, request.output))
        key = (id(request.tools), form, syntaxes, may_reason, in_reasoning)
        cached = self._cache.peek(key)
        if cached is not None and cached[0] is request.tools:
            return cached[1]
        constraint = self._compile(prepared, syntaxes, may_reason, in_reasoning)
        self._cache.put(key, (request.tools, constraint))
        return constraint

    def _may_reason(self, prepared: PreparedRequest) -> bool:
        """Return whether the model may reason: neither the request nor the prompt disables it."""
        model = self._model
        if self._reasoning_parser is None or prepared.request.thinking.enabled is False:
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
        # A schema alone cannot express the markers around the arguments of a call.
        grammar_syntaxes = [syntax for syntax in syntaxes if syntax != "json_schema"]
        try:
            grammar = build_guided_grammar(
                self._tool_parser,
                self._reasoning_parser,
                tools=request.tools,
                choice=request.tool_choice,
                output=request.output,
                in_reasoning=in_reasoning,
                allow_reasoning=may_reason,
                syntax=grammar_syntaxes[0] if grammar_syntaxes else "gbnf",
                tokens=model.tokenizer.controls,
            )
        except Unsupported:
            if grammar_syntaxes:
                raise
            return self._unenforced(request)
        if grammar is None:
            return OutputConstraint()
        if not grammar_syntaxes:
            return self._unenforced(request)
        notes = tuple(f"guided:{note}" for note in grammar.notes)
        return OutputConstraint(Constraint(grammar.syntax, grammar.text), notes)

    def _unenforced(self, request: Request) -> OutputConstraint:
        """Handle a constraint without an engine that enforces constraints."""
        field = constraining_field(request)
        if field == "parallel_tool_calls":
            return OutputConstraint()  # the output ends before a second call
        if self._fallback == "report":
            return OutputConstraint(notes=(UNENFORCED_NOTE,))
        message = f"{field}: the engine does not support constrained output"
        raise Unsupported(message, param=field)


def constraining_field(request: Request) -> str:
    """Return the field of a request that constrains its output."""
    choice = request.tool_choice
    if request.output.kind != "text" and choice.mode not in ("required", "named"):
        return request.output.field
    if choice.mode != "auto":
        return "tool_choice"
    strict = any(tool.strict for tool in request.tools)
    return "tools" if strict else "parallel_tool_calls"
