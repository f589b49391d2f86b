"""What a template does to turns that lie behind: which thoughts it keeps, what it rewrites."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.models.template_probe.context import Bench, Message, shared, with_thought

#: Fields of a message that may hold its thought.
FIELDS = ("reasoning_content", "reasoning", "thinking", "thought")
#: Not a field: the thought is a part of the content, of the type "thinking".
PARTS = "content"


def reasoning_fields(bench: Bench, switches: Mapping[str, Any]) -> tuple[str, ...]:
    """The fields of an assistant message whose thoughts the template shows, each alone.

    Of fields that together would show a thought twice only the first is named.
    """
    fields = tuple(field for field in FIELDS if shows(bench, (field,), switches) == 1)
    return fields if shows(bench, fields, switches) <= 1 else fields[:1]


def shows(bench: Bench, fields: Sequence[str], switches: Mapping[str, Any]) -> int:
    """How often a thought in all these fields is shown, at most.

    Tried where every policy but "never" shows it: in the running tool loop, and in the last turn.
    """
    turns = (
        [bench.user(), bench.calls("call"), bench.result("call")],
        [bench.user(), bench.says("answer")],
    )
    return max(_shows(bench, fields, turn, switches) for turn in turns)


def keeps_in_loop(bench: Bench, switches: Mapping[str, Any] | None = None) -> bool:
    """Whether all thoughts of a running tool loop are shown."""
    loop = [bench.user(), *_step(bench, 1), *_step(bench, 2)]
    return not strips(bench, switches) and _shown(bench, loop, (1, 2), switches=switches)


def keeps_at_user(
    bench: Bench, switches: Mapping[str, Any] | None = None, tools: bool = True
) -> bool:
    """Whether the thoughts of a finished turn survive the user's next message."""
    if strips(bench, switches):
        return False
    if not tools or bench.render([bench.user(), *_step(bench, 1)]) is None:
        turns = [bench.user(), bench.says("answer", thought="thought 1"), bench.user("more")]
        return _shown(bench, turns, (1,), switches=switches, tools=False)
    return _shown(bench, _finished(bench), (1, 2), switches=switches)


def drops_at_final(bench: Bench) -> bool:
    """Whether a loop's thoughts survive user text in the middle of it, but not the final answer."""
    steered = [bench.user(), *_step(bench, 1), bench.user("more")]
    return _shown(bench, steered, (1,)) and not _shown(bench, _finished(bench), (1,))


def strips(bench: Bench, switches: Mapping[str, Any] | None = None) -> bool:
    """Whether a template without a field takes thoughts out of the text, even of the last turn."""
    turns = [bench.user(), bench.says("answer", thought="thought 1")]
    return not bench.field and not _shown(bench, turns, (1,), switches=switches, tools=False)


def keeps_plain(bench: Bench, tools: bool = True) -> bool:
    """Whether a history without thoughts stays as it was when the user speaks again."""
    turns = _plain(bench, tools)
    answer = bench.marks["answer"]
    last = bench.render(turns, tools=tools, generation=False)
    later = bench.render([*turns, bench.user("more")], tools=tools)
    if last is None or later is None:
        return keeps_plain(bench, tools=False) if tools else True
    known, found, _ = last.partition(answer)
    return bool(found) and later.startswith(known + answer)


def keeps_prompt(bench: Bench, opener: str) -> bool:
    """Whether the prompt that asked for a turn stays before it, but for the thought it opened."""
    for tools in (True, False):
        turns = _plain(bench, tools)
        prompt = bench.render(turns[:-1], tools=tools)
        later = bench.render([*turns, bench.user("more")], tools=tools)
        if prompt and later and not later.startswith(prompt.removesuffix(opener)):
            return False
    return True


def _plain(bench: Bench, tools: bool) -> list[Message]:
    step = [bench.calls("call"), bench.result("call")] if tools else []
    return [bench.user(), *step, bench.says("answer")]


def interleaves(bench: Bench) -> bool:
    """Whether think, call, think, call can stand in one turn: as two messages that become one.

    They have become one if the first call is not followed by what ends a turn of calls.
    """
    if not bench.field:
        return False
    first = bench.calls("call 1", thought="thought 1")
    second = bench.calls("call 2", thought="thought 2")
    results = [bench.result("call 1"), bench.result("call 2")]
    both = bench.render([bench.user(), first, second, *results])
    alone = bench.render([bench.user(), first], generation=False)
    answered = bench.render([bench.user(), first, results[0]])
    if both is None or alone is None or answered is None:
        return False
    parts = ("thought 1", "call 1", "thought 2", "call 2")
    at = [both.find(bench.marks[part]) for part in parts]
    if -1 in at or at != sorted(at):
        return False
    call = bench.marks["call 1"]
    ending = shared(alone.rpartition(call)[2], answered.rpartition(call)[2])
    return not both.partition(call)[2].startswith(ending)


def _step(bench: Bench, number: int) -> list[Message]:
    call = f"call {number}"
    return [bench.calls(call, thought=f"thought {number}"), bench.result(call)]


_PRINTED_PART = re.compile(r"""["']type["']\s*:\s*["']thinking["']""")


def _shows(
    bench: Bench, fields: Sequence[str], turns: Sequence[Message], switches: Mapping[str, Any]
) -> int:
    thinking = turns[1]
    for field in fields:
        thinking = with_thought(thinking, field, bench.marks["thought"])
    text = bench.render([turns[0], thinking, *turns[2:]], switches=switches) or ""
    # A template that prints parts as they are does not know them.
    if PARTS in fields and _PRINTED_PART.search(text):
        return 0
    return text.count(bench.marks["thought"])


def _finished(bench: Bench) -> list[Message]:
    """A tool loop, its answer, and the user's next message."""
    answer = bench.says("answer", thought="thought 2")
    return [bench.user(), *_step(bench, 1), answer, bench.user("more")]


def _shown(
    bench: Bench,
    turns: Sequence[Message],
    thoughts: Sequence[int],
    *,
    switches: Mapping[str, Any] | None = None,
    tools: bool = True,
) -> bool:
    text = bench.render(turns, switches=switches, tools=tools)
    return text is not None and all(bench.marks[f"thought {n}"] in text for n in thoughts)
