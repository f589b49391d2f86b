"""Probe the handling of earlier turns: which reasoning a template keeps, what it rewrites."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.models.template_probe.context import (
    ProbeContext,
    ProbeMessage,
    add_reasoning,
    common_prefix,
)

#: Message fields that may contain reasoning.
REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking", "thought")
#: Not a field of its own: reasoning is a content part of the type "thinking".
CONTENT_PARTS = "content"


def detect_reasoning_fields(context: ProbeContext, switches: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the fields of an assistant message from which the template renders reasoning.

    If several fields together would render it twice, only the first is returned.
    """
    fields = tuple(
        field for field in REASONING_FIELDS if count_reasoning(context, (field,), switches) == 1
    )
    return fields if count_reasoning(context, fields, switches) <= 1 else fields[:1]


def count_reasoning(
    context: ProbeContext, fields: Sequence[str], switches: Mapping[str, Any]
) -> int:
    """Return the maximum number of times that reasoning in these fields is rendered.

    It is probed where every policy except "never" keeps it: in the running tool loop and in the
    last turn.
    """
    turns = (
        [context.user_message(), context.call_message("call"), context.result_message("call")],
        [context.user_message(), context.assistant_message("answer")],
    )
    return max(_count_in_turn(context, fields, turn, switches) for turn in turns)


def keeps_reasoning_in_loop(
    context: ProbeContext, switches: Mapping[str, Any] | None = None
) -> bool:
    """Return whether all reasoning of a running tool loop is rendered."""
    loop = [context.user_message(), *_loop_step(context, 1), *_loop_step(context, 2)]
    return not strips_reasoning(context, switches) and _is_reasoning_rendered(
        context, loop, (1, 2), switches=switches
    )


def keeps_reasoning_at_user(
    context: ProbeContext, switches: Mapping[str, Any] | None = None, tools: bool = True
) -> bool:
    """Return whether the reasoning of a finished turn survives the next user message."""
    if strips_reasoning(context, switches):
        return False
    if not tools or context.render([context.user_message(), *_loop_step(context, 1)]) is None:
        turns = [
            context.user_message(),
            context.assistant_message("answer", reasoning="reasoning 1"),
            context.user_message("more"),
        ]
        return _is_reasoning_rendered(context, turns, (1,), switches=switches, tools=False)
    return _is_reasoning_rendered(context, _finished_loop(context), (1, 2), switches=switches)


def keeps_reasoning_at_system(context: ProbeContext) -> bool:
    """Return whether the reasoning of a finished loop survives a later system message."""
    *turns, _ = _finished_loop(context)
    system = {**context.user_message("more"), "role": "system"}
    text = context.render([*turns, system])
    marks = ("reasoning 1", "reasoning 2", "more")
    return text is not None and all(context.marks[mark] in text for mark in marks)


def drops_reasoning_at_final(context: ProbeContext) -> bool:
    """Return whether reasoning of a loop survives user text in it, but not the final message."""
    steered = [context.user_message(), *_loop_step(context, 1), context.user_message("more")]
    return _is_reasoning_rendered(context, steered, (1,)) and not _is_reasoning_rendered(
        context, _finished_loop(context), (1,)
    )


def strips_reasoning(context: ProbeContext, switches: Mapping[str, Any] | None = None) -> bool:
    """Return whether a template without a field removes reasoning even from the last text."""
    turns = [context.user_message(), context.assistant_message("answer", reasoning="reasoning 1")]
    return not context.reasoning_field and not _is_reasoning_rendered(
        context, turns, (1,), switches=switches, tools=False
    )


def keeps_plain_history(context: ProbeContext, tools: bool = True) -> bool:
    """Return whether the next user turn leaves a history without reasoning unchanged."""
    turns = _plain_turns(context, tools)
    marker = context.marks["answer"]
    last = context.render(turns, tools=tools, add_generation_prompt=False)
    later = context.render([*turns, context.user_message("more")], tools=tools)
    if last is None or later is None:
        return keeps_plain_history(context, tools=False) if tools else True
    known, found, _ = last.partition(marker)
    return bool(found) and later.startswith(known + marker)


def keeps_prompt(context: ProbeContext, opener: str) -> bool:
    """Return whether the prompt of a turn stays unchanged, except for opened reasoning."""
    for tools in (True, False):
        turns = _plain_turns(context, tools)
        prompt = context.render(turns[:-1], tools=tools)
        later = context.render([*turns, context.user_message("more")], tools=tools)
        if prompt and later and not later.startswith(prompt.removesuffix(opener)):
            return False
    return True


def _plain_turns(context: ProbeContext, tools: bool) -> list[ProbeMessage]:
    step = [context.call_message("call"), context.result_message("call")] if tools else []
    return [context.user_message(), *step, context.assistant_message("answer")]


def can_interleave(context: ProbeContext) -> bool:
    """Return whether reasoning and calls can be interleaved in one turn.

    That is so if two messages are rendered as one: the first call is not followed by the text that
    ends a turn with calls.
    """
    if not context.reasoning_field:
        return False
    first = context.call_message("call 1", reasoning="reasoning 1")
    second = context.call_message("call 2", reasoning="reasoning 2")
    results = [context.result_message("call 1"), context.result_message("call 2")]
    both = context.render([context.user_message(), first, second, *results])
    alone = context.render([context.user_message(), first], add_generation_prompt=False)
    with_result = context.render([context.user_message(), first, results[0]])
    if both is None or alone is None or with_result is None:
        return False
    parts = ("reasoning 1", "call 1", "reasoning 2", "call 2")
    at = [both.find(context.marks[part]) for part in parts]
    if -1 in at or at != sorted(at):
        return False
    call = context.marks["call 1"]
    ending = common_prefix(alone.rpartition(call)[2], with_result.rpartition(call)[2])
    return not both.partition(call)[2].startswith(ending)


def _loop_step(context: ProbeContext, number: int) -> list[ProbeMessage]:
    call = f"call {number}"
    message = context.call_message(call, reasoning=f"reasoning {number}")
    return [message, context.result_message(call)]


_PRINTED_PART = re.compile(r"""["']type["']\s*:\s*["']thinking["']""")


def _count_in_turn(
    context: ProbeContext,
    fields: Sequence[str],
    turns: Sequence[ProbeMessage],
    switches: Mapping[str, Any],
) -> int:
    thinking = turns[1]
    for field in fields:
        thinking = add_reasoning(thinking, field, context.marks["reasoning"])
    text = context.render([turns[0], thinking, *turns[2:]], switches=switches) or ""
    # A template that prints parts as JSON or Python does not support them.
    if CONTENT_PARTS in fields and _PRINTED_PART.search(text):
        return 0
    return text.count(context.marks["reasoning"])


def _finished_loop(context: ProbeContext) -> list[ProbeMessage]:
    """Return a tool loop, its final message, and the next user message."""
    final = context.assistant_message("answer", reasoning="reasoning 2")
    return [context.user_message(), *_loop_step(context, 1), final, context.user_message("more")]


def _is_reasoning_rendered(
    context: ProbeContext,
    turns: Sequence[ProbeMessage],
    numbers: Sequence[int],
    *,
    switches: Mapping[str, Any] | None = None,
    tools: bool = True,
) -> bool:
    text = context.render(turns, switches=switches, tools=tools)
    return text is not None and all(context.marks[f"reasoning {n}"] in text for n in numbers)
