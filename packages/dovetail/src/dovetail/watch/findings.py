"""Why a prompt does not go on from the one before it, told from the two requests."""

import json
from collections.abc import Iterator, Sequence

import msgspec

from dovetail.ledger.equivalence import is_same_arguments
from dovetail.ledger.turn_digest import digest_turn
from dovetail.prompt.clean import NormalizationOptions
from dovetail.prompt.diagnosis import PrefixReport
from dovetail.prompt.normalization import PromptNormalizer
from dovetail.prompt.preamble import strip_preamble
from dovetail.prompt.turn_writer import is_interleaved
from dovetail.watch.verdict import Finding
from dovetail_model import Block, ReasoningBlock, Request, TextBlock, ToolCallBlock, ToolSpec, Turn

_SHOWN = 60  # characters of a line that are quoted


class Causes:
    """Finds causes. Holds the rules of what Dovetail would take out."""

    def __init__(self) -> None:
        self._stabilizer = PromptNormalizer(NormalizationOptions())

    def of(
        self, diagnosis: PrefixReport, before: Request, said: Turn | None, now: Request
    ) -> Finding | None:
        """What broke the prefix. `said` is what was answered to the request before."""
        match diagnosis.reason:
            case "header":
                return self.system(before.system, now.system)
            case "tools":
                return Finding("tools", tools_changed(before.tools, now.tools))
            case "switches":
                return Finding("switches", "the template's switches changed")
            case "history":
                return self._history(before, said, now)
            case "policy":
                return Finding("policy")
            case "retokenization" | "resume":
                return _turn_changed(said, _copy_of(before, now))
            case _:
                return None

    def system(self, before: Sequence[Block], now: Sequence[Block]) -> Finding:
        """What is different about a system text."""
        was, here = _text(before), _text(now)
        if _without_billing(before) == _without_billing(now):
            return Finding("billing", _line(was, here))
        if self._clean(before) == self._clean(now):
            return Finding("volatile", _line(was, here))
        return Finding("system", _line(was, here))

    def _clean(self, blocks: Sequence[Block]) -> Sequence[Block]:
        request = Request("", system=tuple(blocks))
        return self._stabilizer.normalize(request).system

    def _history(self, before: Request, said: Turn | None, now: Request) -> Finding:
        """The first turn that is not as it was; volatile text in one is told as such."""
        old = [*before.turns, *([said] if said is not None else [])]
        for at, (was, here) in enumerate(zip(old, now.turns, strict=False)):
            if digest_turn(was).digest == digest_turn(here).digest:
                continue
            if at == len(before.turns) and _same_meaning(was, here, now.tools):
                return _turn_changed(was, here)
            if self._is_volatile(was, here):
                return Finding("volatile", f"turn {at} ({here.role}): {_differs(was, here)}")
            return Finding("history", f"turn {at} ({here.role}): {_differs(was, here)}")
        return Finding("history", f"{len(old) - len(now.turns)} turns are gone from the end")

    def _is_volatile(self, was: Turn, here: Turn) -> bool:
        if was.role != here.role:
            return False
        clean = (self._stabilizer.normalize(Request("", turns=(turn,))) for turn in (was, here))
        first, second = clean
        return (first.turns, first.system) == (second.turns, second.system)


def tools_changed(before: Sequence[ToolSpec], now: Sequence[ToolSpec]) -> str:
    """What is different about the tools."""
    was, here = {_name(t): t for t in before}, {_name(t): t for t in now}
    parts = [
        *_named("added", [name for name in here if name not in was]),
        *_named("removed", [name for name in was if name not in here]),
        *_named("changed", [name for name in here if name in was and was[name] != here[name]]),
    ]
    if not parts and list(was) != list(here):
        moved = next(new for old, new in zip(was, here, strict=True) if old != new)
        return f"the same tools in another order, from {moved} on"
    return "; ".join(parts) or "the tools changed"


def _named(what: str, names: list[str]) -> Iterator[str]:
    if names:
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        yield f"{what}: {', '.join(names[:4])}{more}"


def _name(tool: ToolSpec) -> str:
    return f"{tool.namespace}.{tool.name}" if tool.namespace else tool.name


def _copy_of(before: Request, now: Request) -> Turn | None:
    """The client's copy of what was answered to the request before."""
    at = len(before.turns)
    turn = now.turns[at] if at < len(now.turns) else None
    return turn if turn is not None and turn.role == "assistant" else None


def _same_meaning(said: Turn, copy: Turn, tools: Sequence[ToolSpec]) -> bool:
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


def _turn_changed(said: Turn | None, copy: Turn | None) -> Finding:
    """The same words became other tokens: by what the client did, or by the template."""
    found = copy_fault(said, copy) if said is not None and copy is not None else None
    if found is None and said is not None and copy is not None and is_interleaved(said):
        return Finding("regrouped", f"said as {_order(said)}: the template groups it")
    return found or Finding("retokenization")


def copy_fault(said: Turn, copy: Turn) -> Finding | None:
    """The first thing that is not as it was in a client's copy of an answer."""
    had = any(isinstance(block, ReasoningBlock) and block.text for block in said.blocks)
    has = any(isinstance(b, ReasoningBlock) and (b.text or b.seal) for b in copy.blocks)
    if had and not has:
        return Finding("thoughts_not_returned")
    if is_interleaved(said) and _kinds(said) != _kinds(copy):
        return Finding("regrouped", f"said as {_order(said)}, sent back as {_order(copy)}")
    if _arguments(said) != _arguments(copy):
        return Finding("rewritten", _arguments_differ(said, copy))
    return None


def _kinds(turn: Turn) -> list[str]:
    """The kinds of blocks in their order. Neighbours of one kind count once, calls each."""
    kinds: list[str] = []
    for block in turn.blocks:
        blank = isinstance(block, TextBlock | ReasoningBlock) and not block.text.strip()
        if not blank and (block.type == "tool_call" or kinds[-1:] != [block.type]):
            kinds.append(block.type)
    return kinds


def _order(turn: Turn) -> str:
    names = {"tool_call": "call", "reasoning": "thought"}
    return ", ".join(names.get(kind, kind) for kind in _kinds(turn))


def _arguments(turn: Turn) -> list[str]:
    calls = [block for block in turn.blocks if isinstance(block, ToolCallBlock)]
    return [call.arguments if call.custom else _compact(call.arguments) for call in calls]


def _compact(arguments: str) -> str:
    """Arguments without white space between them: APIs carry values, not spellings of JSON."""
    try:
        return json.dumps(json.loads(arguments or "{}"), ensure_ascii=False)
    except (ValueError, RecursionError):
        return arguments


def _arguments_differ(said: Turn, copy: Turn) -> str:
    for was, here in zip(_arguments(said), _arguments(copy), strict=False):
        if was != here:
            return f"a call's arguments: {_around(was, here)}"
    return "the calls"


def _without_billing(blocks: Sequence[Block]) -> list[object]:
    texts = [strip_preamble(b.text) if isinstance(b, TextBlock) else b for b in blocks]
    return [text for text in texts if text != ""]


def _text(blocks: Sequence[Block]) -> str:
    return "\n".join(block.text for block in blocks if isinstance(block, TextBlock))


def _line(was: str, now: str) -> str:
    """The first line that differs."""
    old, new = was.split("\n"), now.split("\n")
    for number, (left, right) in enumerate(zip(old, new, strict=False), 1):
        if left != right:
            return f"line {number}: {_around(left, right)}"
    verb = "added" if len(new) > len(old) else "removed"
    at = min(len(old), len(new)) + 1
    return f"line {at}: {abs(len(new) - len(old))} lines {verb} at the end"


def _differs(was: Turn, here: Turn) -> str:
    if was.role != here.role:
        return f"was {was.role}"
    left, right = _spelled(was), _spelled(here)
    return _around(left, right)


def _spelled(turn: Turn) -> str:
    texts = [b.text for b in turn.blocks if isinstance(b, TextBlock)]
    if texts:
        return "\n".join(texts)
    return msgspec.json.encode(turn.blocks).decode()


def _around(was: str, now: str) -> str:
    """The two texts from a little before the place where they part."""
    at = next(
        (n for n, (a, b) in enumerate(zip(was, now, strict=False)) if a != b),
        min(len(was), len(now)),
    )
    start = max(0, at - _SHOWN // 3)
    return f"{_cut(was, start)} became {_cut(now, start)}"


def _cut(text: str, start: int) -> str:
    end = start + _SHOWN
    shown = text[start:end].replace("\n", "⏎")
    return f"{'…' if start else ''}{shown!r}{'…' if end < len(text) else ''}"
