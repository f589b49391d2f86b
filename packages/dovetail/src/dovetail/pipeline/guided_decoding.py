"""Guided decoding: translate tool choice and output format into a constraint for the engine."""

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Literal

import msgspec

from dovetail.engines.engine import Constraint, ConstraintSyntax
from dovetail.models.loader import Model
from dovetail.pipeline.concurrency import submit_constraint
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
_MAX_CACHED_CHARS = 64 << 20
_MIN_HUGE_TOOLS = 128
_MIN_HUGE_FORMAT_BYTES = 1 << 15

_CacheKey = tuple[object, ...]


@dataclass(frozen=True)
class OutputConstraint:
    """The constraint on an output. `notes` name the parts that are not enforced."""

    constraint: Constraint | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_unconstrained(self) -> bool:
        """Whether any output is allowed."""
        return self.constraint is None

    @property
    def size(self) -> int:
        """The number of characters of the grammar."""
        return len(self.constraint.text) if self.constraint is not None else 0


class ConstraintBuilder:
    """Builds the constraints of requests to a model, cached because sessions repeat them.

    A grammar is built in a thread, once for all requests that wait for it: even a small schema may
    take a second.
    """

    def __init__(
        self, model: Model, fallback: GuidedFallback = "reject", *, raw_prompts: bool = False
    ) -> None:
        self._model = model
        self._fallback = fallback
        # Text that continues a raw prompt is not parsed, so it has no reasoning and no calls.
        self._tool_parser = None if raw_prompts else model.tool_parser
        self._reasoning_parser = None if raw_prompts else model.reasoning_parser
        self._cache: LruCache[_CacheKey, tuple[object, OutputConstraint]] = LruCache(
            _MAX_CACHED, max_size=_MAX_CACHED_CHARS, size_of=lambda entry: entry[1].size
        )
        self._pending: dict[_CacheKey, asyncio.Future[OutputConstraint]] = {}

    async def build(
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
        work = partial(self._compile, prepared, syntaxes, may_reason, in_reasoning)
        if not is_constrained(request):
            constraint = work()
            self._cache.put(key, (request.tools, constraint))
            return constraint
        if key not in self._pending:
            huge = len(request.tools) >= _MIN_HUGE_TOOLS or len(form) >= _MIN_HUGE_FORMAT_BYTES
            self._pending[key] = submit_constraint(work, huge=huge)
            self._pending[key].add_done_callback(partial(self._store, key, request.tools))
        # A client that disconnects does not cancel the work for the others.
        return await asyncio.shield(self._pending[key])

    def _store(
        self, key: _CacheKey, tools: object, built: asyncio.Future[OutputConstraint]
    ) -> None:
        del self._pending[key]
        if not built.cancelled() and built.exception() is None:
            self._cache.put(key, (tools, built.result()))

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
        if field in ("parallel_tool_calls", "allowed_tools"):
            return OutputConstraint()  # the output ends before an excluded call
        if self._fallback == "report":
            return OutputConstraint(notes=(UNENFORCED_NOTE,))
        message = f"{field}: the engine does not support constrained output"
        raise Unsupported(message, param=field)


def is_constrained(request: Request) -> bool:
    """Return whether the request may need a grammar."""
    choice = request.tool_choice
    if request.output.kind != "text":
        return True
    free = choice.mode == "auto" and choice.parallel and choice.allowed is None
    return not free or any(tool.strict for tool in request.tools)


def constraining_field(request: Request) -> str:
    """Return the field of a request that constrains its output."""
    choice = request.tool_choice
    if request.output.kind != "text" and choice.mode not in ("required", "named"):
        return request.output.field
    if choice.mode != "auto":
        return "tool_choice"
    if any(tool.strict for tool in request.tools):
        return "tools"
    return "allowed_tools" if choice.parallel else "parallel_tool_calls"
