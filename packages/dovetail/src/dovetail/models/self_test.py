"""Do a template and a pair of parsers fit? Render a turn, parse what is shown, compare."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from dovetail.models.template_probe.context import shared, with_thought
from dovetail.prompt.facts import TemplateProfile
from dovetail.prompt.rendering_template import ChatTemplate, RenderError
from dovetail.prompt.tool_fallback import to_plain_messages, needs_fallback
from dovetail_model import Message as Answer
from dovetail_parsers import markers, opens_thought, parse

Message = dict[str, Any]


@dataclass(frozen=True)
class Pairing:
    """A template and its parsers."""

    template: ChatTemplate
    facts: TemplateProfile
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    switches: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Outcome:
    """What came of one shape of turn. `lost` was shown and did not come back; `leaked` came back
    and had not been put in. `refused` is the template's own reason not to render it."""

    shape: str
    lost: tuple[str, ...] = ()
    leaked: tuple[str, ...] = ()
    refused: str = ""

    @property
    def ok(self) -> bool:
        return not (self.lost or self.leaked or self.refused)


@dataclass(frozen=True)
class SelfTest:
    """The outcome of every shape. Text beside calls may fail: many models never write it."""

    outcomes: tuple[Outcome, ...]
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return all(outcome.ok for outcome in self.outcomes if outcome.shape != _BOTH)


def self_test(pairing: Pairing) -> SelfTest:
    """Tries the shapes of turn that agents produce."""
    facts = pairing.facts
    left_out = set() if facts.many_calls or not facts.renders_calls else {_TWO}
    left_out |= set() if facts.text_with_calls else {_BOTH}
    tried = (shape for shape in _SHAPES if shape[0] not in left_out)
    return SelfTest(tuple(_try(pairing, *shape) for shape in tried), _notes(pairing))


_ANSWER, _TWO, _BOTH = "answer", "two calls", "text and call"
#: Every shape of turn: its name, whether it has text, how many calls.
_SHAPES = ((_ANSWER, True, 0), ("call", False, 1), (_TWO, False, 2), (_BOTH, True, 1))
_THOUGHT, _TEXT, _ASK = "I weigh it: first A, then B.", "Let me look.", "What is the weather?"
_CALLS: tuple[dict[str, Any], ...] = (
    {"city": 'Paris "the city"\nof é 🦜', "days": 3, "metric": True, "tags": ["a", "b"]},
    {"city": "Oslo"},
)
_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Looks the weather up.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Where."},
                "days": {"type": "integer", "description": "How long."},
                "metric": {"type": "boolean", "description": "Units."},
                "tags": {"type": "array", "items": {"type": "string"}, "description": "Marks."},
            },
            "required": ["city"],
        },
    },
}


def _try(pairing: Pairing, shape: str, text: bool, calls: int) -> Outcome:
    if calls and pairing.tool_parser is None:
        return Outcome(shape)
    try:
        prompt, output = _generated(pairing, text, calls)
        outcome = _compare(pairing, shape, prompt, output)
        if not outcome.ok and shape == _ANSWER:
            later = _compare(pairing, shape, *_answered(pairing))
            return later if later.ok else outcome
        return outcome
    except RenderError as error:
        return Outcome(shape, refused=str(error))


def _compare(pairing: Pairing, shape: str, prompt: str, output: str) -> Outcome:
    inside = opens_thought(prompt[-200:], pairing.tool_parser, pairing.reasoning_parser)
    answer = parse(
        output,
        tool_parser=pairing.tool_parser,
        reasoning_parser=pairing.reasoning_parser,
        tools=[_TOOL],
        in_reasoning=inside,
    )
    put_in, got = _expected(output, shape), _seen(answer)
    return Outcome(
        shape,
        lost=tuple(_told(item) for item in put_in if item not in got),
        leaked=tuple(_told(item) for item in got if item not in put_in),
    )


def _generated(pairing: Pairing, text: bool, calls: int) -> tuple[str, str]:
    """The end of the prompt, and what the model would have written behind it.

    A template that does not repeat the thought which its prompt opens takes thoughts apart in
    history: there only the rest of the turn can be compared.
    """
    prompt, turn = _render(pairing, [_turn(pairing, text, calls)])
    if not turn.startswith(prompt.rstrip()):
        prompt, turn = _render(pairing, [_turn(pairing, text, calls, thought=False)])
    beginning = shared(prompt, turn)
    return beginning, _without_stop(turn[len(beginning) :], pairing)


def _answered(pairing: Pairing) -> tuple[str, str]:
    """An answer that the user has reacted to: a few templates treat the very last one specially."""
    follow: Message = {"role": "user", "content": _content(pairing.facts, "Thanks.")}
    prompt, text = _render(pairing, [_turn(pairing, True, 0), follow])
    beginning = shared(prompt, text)
    return beginning, text[len(beginning) : text.rindex(_TEXT) + len(_TEXT)]


def _turn(pairing: Pairing, text: bool, calls: int, thought: bool = True) -> Message:
    facts = pairing.facts
    said: Message = {"role": "assistant", "content": _TEXT if text else ""}
    if calls:
        said["tool_calls"] = [_call(facts, i) for i in range(calls)]
        if facts.wants_null and not text:
            said["content"] = None
    if pairing.reasoning_parser is None or not thought:
        return said
    for field in facts.reasoning_fields or (("content",) if facts.thinking_parts else ()):
        said = with_thought(said, field, _THOUGHT)
    return said


def _call(facts: TemplateProfile, place: int) -> Message:
    values = _CALLS[place]
    given = json.dumps(values, ensure_ascii=False) if facts.arguments == "string" else values
    ids = {"kimi": f"functions.get_weather:{place}"}
    function = {"name": "get_weather", "arguments": given}
    name = ids.get(facts.call_ids, f"call0000{place}")
    return {"id": name, "type": "function", "function": function}


def _render(pairing: Pairing, turns: list[Message]) -> tuple[str, str]:
    """The prompt that asks for the first turn, and the conversation with all of them."""
    ask: Message = {"role": "user", "content": _content(pairing.facts, _ASK)}
    messages, tools = [ask, *turns], [_TOOL]
    if needs_fallback(pairing.facts):
        messages = to_plain_messages(messages, tools, pairing.facts, pairing.tool_parser)
        tools = tools if pairing.facts.renders_tools else []
    template, switches = pairing.template, pairing.switches
    asking = messages[: len(messages) - len(turns)]
    prompt = template.render(asking, tools, add_generation_prompt=True, switches=switches)
    text = template.render(messages, tools, add_generation_prompt=False, switches=switches)
    if prompt == template.render(asking, tools, add_generation_prompt=False, switches=switches):
        text = _without_shared_end(text, prompt)  # it asks for a turn whether told to or not
    return prompt, text


def _without_shared_end(text: str, prompt: str) -> str:
    pairs = zip(reversed(text), reversed(prompt), strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return text[: len(text) - same]


def _content(facts: TemplateProfile, text: str) -> str | list[Message]:
    return text if facts.content == "string" else [{"type": "text", "text": text}]


def _without_stop(output: str, pairing: Pairing) -> str:
    """The output without the tokens that end it: tags at its end that are no markers."""
    known = markers(pairing.tool_parser, pairing.reasoning_parser)
    while True:
        stop = _STOP.search(output)
        if stop is None or any(marker.endswith(stop[1]) for marker in known):
            return output
        output = output[: stop.start()]


_STOP = re.compile(r"\s*(<[^<>\s]{1,40}>|\[[^\[\]\s]{1,20}\[)\s*\Z")


def _expected(output: str, shape: str) -> list[tuple[str, str]]:
    """What the template showed of the turn; a thought that it did not show cannot come back."""
    _, text, calls = next(known for known in _SHAPES if known[0] == shape)
    items = [("reasoning", _THOUGHT)] if _THOUGHT in output else []
    items += [("text", _TEXT)] if text else []
    return items + [("call", _canonical(values)) for values in _CALLS[:calls]]


def _seen(answer: Answer) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for block in answer.blocks:
        if block.type == "tool_call":
            found.append(("call", _arguments(block.arguments)))
        elif block.text.strip():
            found.append((block.type, block.text.strip()))
    return found


def _arguments(text: str) -> str:
    try:
        return _canonical(json.loads(text))
    except ValueError:
        return text


def _canonical(values: object) -> str:
    return json.dumps(values, ensure_ascii=False, sort_keys=True)


def _told(item: tuple[str, str]) -> str:
    kind, text = item
    return f"{kind}: {text if len(text) < 120 else text[:117] + '...'}"


def _notes(pairing: Pairing) -> tuple[str, ...]:
    opener = pairing.facts.opens_thought
    if opener and pairing.reasoning_parser is None:
        return ("the prompt opens a thought, but there is no reasoning parser: it will be text",)
    if opener and not opens_thought(opener, pairing.tool_parser, pairing.reasoning_parser):
        return (
            f"the reasoning parser does not know the thought that the prompt opens: {opener!r}",
        )
    return ()
