"""Why a prompt does not go on from the one before it, told from the two requests."""

import json
from collections.abc import Iterator, Sequence

import msgspec

from dovetail.ledger.equivalence import is_same_arguments
from dovetail.ledger.turn_digest import digest_turn
from dovetail.prompt.normalization import PromptNormalizer
from dovetail.prompt.prefix_diagnostics import PrefixReport
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

_QUOTED_CHARS = 60  # characters of a line that are quoted


class PrefixBreakClassifier:
    """Finds causes. Holds the rules of what Dovetail would take out."""

    def __init__(self) -> None:
        self._stabilizer = PromptNormalizer(NormalizationOptions())

    def classify(
        self, diagnosis: PrefixReport, before: Request, response: Turn | None, now: Request
    ) -> TrafficFinding | None:
        """What broke the prefix. `said` is what was answered to the request before."""
        match diagnosis.reason:
            case "header":
                return self.classify_system(before.system, now.system)
            case "tools":
                return TrafficFinding("tools", describe_tool_changes(before.tools, now.tools))
            case "switches":
                return TrafficFinding("switches", "the template's switches changed")
            case "history":
                return self._classify_history(before, response, now)
            case "policy":
                return TrafficFinding("policy")
            case "retokenization" | "resume":
                return _classify_turn(response, _returned_turn(before, now))
            case _:
                return None

    def classify_system(self, before: Sequence[Block], now: Sequence[Block]) -> TrafficFinding:
        """What is different about a system text."""
        was, here = _text(before), _text(now)
        if _strip_billing(before) == _strip_billing(now):
            return TrafficFinding("billing", _describe_line_change(was, here))
        if self._stabilize(before) == self._stabilize(now):
            return TrafficFinding("volatile", _describe_line_change(was, here))
        return TrafficFinding("system", _describe_line_change(was, here))

    def _stabilize(self, blocks: Sequence[Block]) -> Sequence[Block]:
        request = Request("", system=tuple(blocks))
        return self._stabilizer.normalize(request).system

    def _classify_history(self, before: Request, said: Turn | None, now: Request) -> TrafficFinding:
        """The first turn that is not as it was; volatile text in one is told as such."""
        old = [*before.turns, *([said] if said is not None else [])]
        for at, (was, here) in enumerate(zip(old, now.turns, strict=False)):
            if digest_turn(was).digest == digest_turn(here).digest:
                continue
            if at == len(before.turns) and _is_equivalent(was, here, now.tools):
                return _classify_turn(was, here)
            if self._is_volatile(was, here):
                return TrafficFinding(
                    "volatile", f"turn {at} ({here.role}): {_describe_turn_change(was, here)}"
                )
            return TrafficFinding(
                "history", f"turn {at} ({here.role}): {_describe_turn_change(was, here)}"
            )
        return TrafficFinding("history", f"{len(old) - len(now.turns)} turns are gone from the end")

    def _is_volatile(self, was: Turn, here: Turn) -> bool:
        if was.role != here.role:
            return False
        clean = (self._stabilizer.normalize(Request("", turns=(turn,))) for turn in (was, here))
        first, second = clean
        return (first.turns, first.system) == (second.turns, second.system)


def describe_tool_changes(before: Sequence[ToolSpec], now: Sequence[ToolSpec]) -> str:
    """What is different about the tools."""
    was, here = {_tool_name(t): t for t in before}, {_tool_name(t): t for t in now}
    parts = [
        *_list_names("added", [name for name in here if name not in was]),
        *_list_names("removed", [name for name in was if name not in here]),
        *_list_names("changed", [name for name in here if name in was and was[name] != here[name]]),
    ]
    if not parts and list(was) != list(here):
        moved = next(new for old, new in zip(was, here, strict=True) if old != new)
        return f"the same tools in another order, from {moved} on"
    return "; ".join(parts) or "the tools changed"


def _list_names(what: str, names: list[str]) -> Iterator[str]:
    if names:
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        yield f"{what}: {', '.join(names[:4])}{more}"


def _tool_name(tool: ToolSpec) -> str:
    return f"{tool.namespace}.{tool.name}" if tool.namespace else tool.name


def _returned_turn(before: Request, now: Request) -> Turn | None:
    """The client's copy of what was answered to the request before."""
    at = len(before.turns)
    turn = now.turns[at] if at < len(now.turns) else None
    return turn if turn is not None and turn.role == "assistant" else None


def _is_equivalent(said: Turn, copy: Turn, tools: Sequence[ToolSpec]) -> bool:
    """Whether a copy differs from what was said in form alone."""
    schemas = {tool.name: tool.parameters for tool in tools}
    left, right = (
        [block for block in turn.blocks if isinstance(block, ToolCallBlock)]
        for turn in (said, copy)
    )
    if [call.name for call in left] != [call.name for call in right]:
        return False
    if _text(said.blocks).strip() != _text(copy.blocks).strip():
        return False
    pairs = zip(left, right, strict=True)
    return all(
        is_same_arguments(one.arguments, other.arguments, schemas.get(one.name, {}))
        for one, other in pairs
    )


def _classify_turn(said: Turn | None, copy: Turn | None) -> TrafficFinding:
    """The same words became other tokens: by what the client did, or by the template."""
    found = find_copy_difference(said, copy) if said is not None and copy is not None else None
    if found is None and said is not None and copy is not None and is_interleaved(said):
        return TrafficFinding(
            "regrouped", f"said as {_describe_order(said)}: the template groups it"
        )
    return found or TrafficFinding("retokenization")


def find_copy_difference(response: Turn, copy: Turn) -> TrafficFinding | None:
    """The first thing that is not as it was in a client's copy of an answer."""
    had = any(isinstance(block, ReasoningBlock) and block.text for block in response.blocks)
    has = any(isinstance(b, ReasoningBlock) and (b.text or b.seal) for b in copy.blocks)
    if had and not has:
        return TrafficFinding("thoughts_not_returned")
    if is_interleaved(response) and _block_types(response) != _block_types(copy):
        return TrafficFinding(
            "regrouped",
            f"said as {_describe_order(response)}, sent back as {_describe_order(copy)}",
        )
    if _call_arguments(response) != _call_arguments(copy):
        return TrafficFinding("rewritten", _describe_argument_change(response, copy))
    return None


def _block_types(turn: Turn) -> list[str]:
    """The kinds of blocks in their order. Neighbours of one kind count once, calls each."""
    kinds: list[str] = []
    for block in turn.blocks:
        blank = isinstance(block, TextBlock | ReasoningBlock) and not block.text.strip()
        if not blank and (block.type == "tool_call" or kinds[-1:] != [block.type]):
            kinds.append(block.type)
    return kinds


def _describe_order(turn: Turn) -> str:
    names = {"tool_call": "call", "reasoning": "thought"}
    return ", ".join(names.get(kind, kind) for kind in _block_types(turn))


def _call_arguments(turn: Turn) -> list[str]:
    calls = [block for block in turn.blocks if isinstance(block, ToolCallBlock)]
    return [call.arguments if call.custom else _compact_json(call.arguments) for call in calls]


def _compact_json(arguments: str) -> str:
    """Arguments without white space between them: APIs carry values, not spellings of JSON."""
    try:
        return json.dumps(json.loads(arguments or "{}"), ensure_ascii=False)
    except (ValueError, RecursionError):
        return arguments


def _describe_argument_change(said: Turn, copy: Turn) -> str:
    for was, here in zip(_call_arguments(said), _call_arguments(copy), strict=False):
        if was != here:
            return f"a call's arguments: {_describe_change(was, here)}"
    return "the calls"


def _strip_billing(blocks: Sequence[Block]) -> list[object]:
    texts = [strip_preamble(b.text) if isinstance(b, TextBlock) else b for b in blocks]
    return [text for text in texts if text != ""]


def _text(blocks: Sequence[Block]) -> str:
    return "\n".join(block.text for block in blocks if isinstance(block, TextBlock))


def _describe_line_change(was: str, now: str) -> str:
    """The first line that differs."""
    old, new = was.split("\n"), now.split("\n")
    for number, (left, right) in enumerate(zip(old, new, strict=False), 1):
        if left != right:
            return f"line {number}: {_describe_change(left, right)}"
    verb = "added" if len(new) > len(old) else "removed"
    at = min(len(old), len(new)) + 1
    return f"line {at}: {abs(len(new) - len(old))} lines {verb} at the end"


def _describe_turn_change(was: Turn, here: Turn) -> str:
    if was.role != here.role:
        return f"was {was.role}"
    left, right = _turn_text(was), _turn_text(here)
    return _describe_change(left, right)


def _turn_text(turn: Turn) -> str:
    texts = [b.text for b in turn.blocks if isinstance(b, TextBlock)]
    if texts:
        return "\n".join(texts)
    return msgspec.json.encode(turn.blocks).decode()


def _describe_change(was: str, now: str) -> str:
    """The two texts from a little before the place where they part."""
    at = next(
        (n for n, (a, b) in enumerate(zip(was, now, strict=False)) if a != b),
        min(len(was), len(now)),
    )
    start = max(0, at - _QUOTED_CHARS // 3)
    return f"{_excerpt(was, start)} became {_excerpt(now, start)}"


def _excerpt(text: str, start: int) -> str:
    end = start + _QUOTED_CHARS
    shown = text[start:end].replace("\n", "⏎")
    return f"{'…' if start else ''}{shown!r}{'…' if end < len(text) else ''}"


#: Parsers to try where the model's family is not known: the forms that most models use.
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
    """The calls that the model made and the server left in its text or its thoughts.

    Only those of a tool that the request offered count: others may be quoted.
    """
    offered = {tool.model_name for tool in request.tools} | {tool.name for tool in request.tools}
    found: list[TrafficFinding] = []
    for block in message.blocks:
        if not isinstance(block, TextBlock | ReasoningBlock) or not offered:
            continue
        name = _find_call(block.text, offered, request, reference)
        if name is not None:
            where = "text" if isinstance(block, TextBlock) else "a thought"
            found.append(TrafficFinding("call_as_text", f"a call of {name} stayed in {where}"))
    return tuple(found)


def _find_call(text: str, offered: set[str], request: Request, lens: ReferenceModel) -> str | None:
    if lens.tool_parser is not None:
        parsers: tuple[str, ...] = (lens.tool_parser,)
    elif any(hint in text for hint in _CALL_MARKERS):
        parsers = _DEFAULT_PARSERS
    else:
        return None
    for parser in parsers:
        reader = Parser(parser, tools=request.tools)
        for event in (*reader.feed(text), *reader.finish()):
            if isinstance(event, CallOpen) and event.name in offered:
                return event.name
    return None
