"""Classify why a prompt does not continue the previous one, from the two requests."""

import json
from collections.abc import Iterator, Sequence

import msgspec

from dovetail.ledger.equivalence import is_same_arguments
from dovetail.ledger.turn_digest import digest_history
from dovetail.prompt.normalization import PromptNormalizer
from dovetail.prompt.prefix_report import PrefixReport
from dovetail.prompt.turn_writer import is_interleaved
from dovetail.prompt.volatile_text import NormalizationOptions, strip_preamble
from dovetail.watch.analysis import TrafficFinding
from dovetail.watch.reference_model import ReferenceModel
from dovetail_model import (
    Block,
    CallOpen,
    Message,
    ReasoningBlock,
    Request,
    TextBlock,
    ToolCallBlock,
    ToolSpec,
    Turn,
)
from dovetail_parsers import Parser

_QUOTED_CHARS = 60  # per line


class PrefixBreakClassifier:
    """Classifies prefix breaks, with the rules of what Dovetail would remove."""

    def __init__(self) -> None:
        self._normalizer = PromptNormalizer(NormalizationOptions())

    def classify(
        self, diagnosis: PrefixReport, previous: Request, response: Turn | None, now: Request
    ) -> TrafficFinding | None:
        """Return what broke the prefix. `response` is the response to the previous request."""
        match diagnosis.reason:
            case "header":
                return self.classify_system(previous.system, now.system)
            case "tools":
                return TrafficFinding("tools", describe_tool_changes(previous.tools, now.tools))
            case "switches":
                return TrafficFinding("switches", "the template's switches changed")
            case "history":
                return self._classify_history(previous, response, now)
            case "policy":
                return TrafficFinding("policy")
            case "retokenization" | "resume" | "edit":
                return _classify_turn(response, _returned_turn(previous, now))
            case _:
                return None

    def classify_system(self, before: Sequence[Block], now: Sequence[Block]) -> TrafficFinding:
        """Return what changed in a system text."""
        old, new = _text(before), _text(now)
        if _strip_billing(before) == _strip_billing(now):
            return TrafficFinding("billing", _describe_line_change(old, new))
        if self._normalize_system(before) == self._normalize_system(now):
            return TrafficFinding("volatile", _describe_line_change(old, new))
        return TrafficFinding("system", _describe_line_change(old, new))

    def _normalize_system(self, blocks: Sequence[Block]) -> Sequence[Block]:
        request = Request("", system=tuple(blocks))
        return self._normalizer.normalize(request).system

    def _classify_history(
        self, previous: Request, response: Turn | None, now: Request
    ) -> TrafficFinding:
        """Return the first changed turn; volatile text in it is reported as such."""
        old_turns = [*previous.turns, *([response] if response is not None else [])]
        digests = zip(digest_history(old_turns), digest_history(now.turns), strict=False)
        for at, (old_digest, new_digest) in enumerate(digests):
            old, new = old_turns[at], now.turns[at]
            if old_digest == new_digest:
                continue
            if at == len(previous.turns) and _is_equivalent(old, new, now.tools):
                return _classify_turn(old, new)
            if self._is_volatile(old, new):
                return TrafficFinding(
                    "volatile", f"turn {at} ({new.role}): {_describe_turn_change(old, new)}"
                )
            return TrafficFinding(
                "history", f"turn {at} ({new.role}): {_describe_turn_change(old, new)}"
            )
        return TrafficFinding(
            "history", f"{len(old_turns) - len(now.turns)} turns are missing at the end"
        )

    def _is_volatile(self, old: Turn, new: Turn) -> bool:
        if old.role != new.role:
            return False
        normalized = (self._normalizer.normalize(Request("", turns=(turn,))) for turn in (old, new))
        first, second = normalized
        return (first.turns, first.system) == (second.turns, second.system)


def describe_tool_changes(before: Sequence[ToolSpec], now: Sequence[ToolSpec]) -> str:
    """Describe what changed in the tools."""
    old, new = {_tool_name(t): t for t in before}, {_tool_name(t): t for t in now}
    parts = [
        *_list_names("added", [name for name in new if name not in old]),
        *_list_names("removed", [name for name in old if name not in new]),
        *_list_names("changed", [name for name in new if name in old and old[name] != new[name]]),
    ]
    if not parts and list(old) != list(new):
        moved = next(
            new_name for old_name, new_name in zip(old, new, strict=True) if old_name != new_name
        )
        return f"the same tools in another order, from {moved} on"
    return "; ".join(parts) or "the tools changed"


def _list_names(verb: str, names: list[str]) -> Iterator[str]:
    if names:
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        yield f"{verb}: {', '.join(names[:4])}{more}"


def _tool_name(tool: ToolSpec) -> str:
    return f"{tool.namespace}.{tool.name}" if tool.namespace else tool.name


def _returned_turn(previous: Request, now: Request) -> Turn | None:
    """Return the client's copy of the response to the previous request."""
    at = len(previous.turns)
    turn = now.turns[at] if at < len(now.turns) else None
    return turn if turn is not None and turn.role == "assistant" else None


def _is_equivalent(response: Turn, copy: Turn, tools: Sequence[ToolSpec]) -> bool:
    """Return whether a copy differs from the response in form only."""
    schemas = {tool.name: tool.parameters for tool in tools}
    left, right = (
        [block for block in turn.blocks if isinstance(block, ToolCallBlock)]
        for turn in (response, copy)
    )
    if [call.name for call in left] != [call.name for call in right]:
        return False
    if _text(response.blocks).strip() != _text(copy.blocks).strip():
        return False
    pairs = zip(left, right, strict=True)
    return all(
        is_same_arguments(one.arguments, other.arguments, schemas.get(one.name, {}))
        for one, other in pairs
    )


def _classify_turn(response: Turn | None, copy: Turn | None) -> TrafficFinding:
    """Return why the same text became different tokens: the client's copy, or the template."""
    difference = (
        find_copy_difference(response, copy) if response is not None and copy is not None else None
    )
    if (
        difference is None
        and response is not None
        and copy is not None
        and is_interleaved(response)
    ):
        return TrafficFinding(
            "regrouped", f"generated as {_describe_order(response)}; the template reorders it"
        )
    return difference or TrafficFinding("retokenization")


def find_copy_difference(response: Turn, copy: Turn) -> TrafficFinding | None:
    """Return the first difference in a client's copy of a response."""
    had_reasoning = any(
        isinstance(block, ReasoningBlock) and block.text for block in response.blocks
    )
    has_reasoning = any(isinstance(b, ReasoningBlock) and (b.text or b.seal) for b in copy.blocks)
    if had_reasoning and not has_reasoning:
        return TrafficFinding("thoughts_not_returned")
    if is_interleaved(response) and _block_types(response) != _block_types(copy):
        return TrafficFinding(
            "regrouped",
            f"generated as {_describe_order(response)}, returned as {_describe_order(copy)}",
        )
    if _call_arguments(response) != _call_arguments(copy):
        return TrafficFinding("rewritten", _describe_argument_change(response, copy))
    return None


def _block_types(turn: Turn) -> list[str]:
    """Return the block types in order. Adjacent blocks of one type count once, except calls."""
    kinds: list[str] = []
    for block in turn.blocks:
        blank = isinstance(block, TextBlock | ReasoningBlock) and not block.text.strip()
        if not blank and (block.type == "tool_call" or kinds[-1:] != [block.type]):
            kinds.append(block.type)
    return kinds


def _describe_order(turn: Turn) -> str:
    names = {"tool_call": "call"}
    return ", ".join(names.get(kind, kind) for kind in _block_types(turn))


def _call_arguments(turn: Turn) -> list[str]:
    calls = [block for block in turn.blocks if isinstance(block, ToolCallBlock)]
    return [call.arguments if call.custom else _compact_json(call.arguments) for call in calls]


def _compact_json(arguments: str) -> str:
    """Normalize the white space of arguments: APIs carry values, not their JSON text."""
    try:
        return json.dumps(json.loads(arguments or "{}"), ensure_ascii=False)
    except (ValueError, RecursionError):
        return arguments


def _describe_argument_change(response: Turn, copy: Turn) -> str:
    for old, new in zip(_call_arguments(response), _call_arguments(copy), strict=False):
        if old != new:
            return f"a call's arguments: {_describe_change(old, new)}"
    return "the calls"


def _strip_billing(blocks: Sequence[Block]) -> list[object]:
    texts = [strip_preamble(b.text) if isinstance(b, TextBlock) else b for b in blocks]
    return [text for text in texts if text != ""]


def _text(blocks: Sequence[Block]) -> str:
    return "\n".join(block.text for block in blocks if isinstance(block, TextBlock))


def _describe_line_change(old_text: str, new_text: str) -> str:
    """Describe the first line that differs."""
    old, new = old_text.split("\n"), new_text.split("\n")
    for number, (left, right) in enumerate(zip(old, new, strict=False), 1):
        if left != right:
            return f"line {number}: {_describe_change(left, right)}"
    verb = "added" if len(new) > len(old) else "removed"
    at = min(len(old), len(new)) + 1
    return f"line {at}: {abs(len(new) - len(old))} lines {verb} at the end"


def _describe_turn_change(old: Turn, new: Turn) -> str:
    if old.role != new.role:
        return f"was {old.role}"
    old_text, new_text = _turn_text(old), _turn_text(new)
    return _describe_change(old_text, new_text)


def _turn_text(turn: Turn) -> str:
    texts = [b.text for b in turn.blocks if isinstance(b, TextBlock)]
    if texts:
        return "\n".join(texts)
    return msgspec.json.encode(turn.blocks).decode()


def _describe_change(old: str, new: str) -> str:
    """Return excerpts of both texts around their first difference."""
    at = next(
        (n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b),
        min(len(old), len(new)),
    )
    start = max(0, at - _QUOTED_CHARS // 3)
    return f"{_excerpt(old, start)} became {_excerpt(new, start)}"


def _excerpt(text: str, start: int) -> str:
    end = start + _QUOTED_CHARS
    excerpt = text[start:end].replace("\n", "⏎")
    return f"{'…' if start else ''}{excerpt!r}{'…' if end < len(text) else ''}"


#: Parsers to try if the model's family is unknown: the most common formats.
_DEFAULT_PARSERS = ("hermes", "qwen3_coder", "mistral", "llama3_json", "pythonic")
_CALL_MARKERS = (
    "<tool_call>",
    "<function=",
    "[TOOL_CALLS]",
    "<|python_tag|>",
    "<|tool_call",
    "<｜tool",
)


def find_unparsed_calls(
    message: Message, request: Request, reference: ReferenceModel
) -> tuple[TrafficFinding, ...]:
    """Find tool calls of the model that the server left in text or reasoning.

    Only tools of the request count: other calls may be quotations.
    """
    tool_names = {tool.model_name for tool in request.tools} | {tool.name for tool in request.tools}
    found: list[TrafficFinding] = []
    for block in message.blocks:
        if not isinstance(block, TextBlock | ReasoningBlock) or not tool_names:
            continue
        name = _find_call(block.text, tool_names, request, reference)
        if name is not None:
            where = "the text" if isinstance(block, TextBlock) else "the reasoning"
            found.append(TrafficFinding("call_as_text", f"a call of {name} is in {where}"))
    return tuple(found)


def _find_call(
    text: str, tool_names: set[str], request: Request, reference: ReferenceModel
) -> str | None:
    if reference.tool_parser is not None:
        parsers: tuple[str, ...] = (reference.tool_parser,)
    elif any(marker in text for marker in _CALL_MARKERS):
        parsers = _DEFAULT_PARSERS
    else:
        return None
    for parser in parsers:
        reader = Parser(parser, tools=request.tools)
        for event in (*reader.feed(text), *reader.finish()):
            if isinstance(event, CallOpen) and event.name in tool_names:
                return event.name
    return None
