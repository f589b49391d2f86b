"""Do a template and a pair of parsers fit? Render a turn, parse what is shown, compare."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from dovetail.models.template_probe.context import add_reasoning, common_prefix
from dovetail.prompt.template import ChatTemplate, RenderError, TemplateProfile
from dovetail.prompt.tool_fallback import needs_fallback, to_plain_messages
from dovetail_model import Message as Answer
from dovetail_parsers import markers, opens_reasoning, parse

SelfTestMessage = dict[str, Any]


@dataclass(frozen=True)
class TemplatePairing:
    """A template and its parsers."""

    template: ChatTemplate
    profile: TemplateProfile
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    switches: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class SelfTestOutcome:
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
class SelfTestReport:
    """The outcome of every shape. Text beside calls may fail: many models never write it."""

    outcomes: tuple[SelfTestOutcome, ...]
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return all(outcome.ok for outcome in self.outcomes if outcome.shape != _TEXT_AND_CALL_SHAPE)


def run_self_test(pairing: TemplatePairing) -> SelfTestReport:
    """Tries the shapes of turn that agents produce."""
    facts = pairing.profile
    left_out = set() if facts.many_calls or not facts.renders_calls else {_PARALLEL_SHAPE}
    left_out |= set() if facts.text_with_calls else {_TEXT_AND_CALL_SHAPE}
    tried = (shape for shape in _SHAPES if shape[0] not in left_out)
    return SelfTestReport(
        tuple(_run_shape(pairing, *shape) for shape in tried), _find_notes(pairing)
    )


_TEXT_SHAPE, _PARALLEL_SHAPE, _TEXT_AND_CALL_SHAPE = "answer", "two calls", "text and call"
#: Every shape of turn: its name, whether it has text, how many calls.
_SHAPES = (
    (_TEXT_SHAPE, True, 0),
    ("call", False, 1),
    (_PARALLEL_SHAPE, False, 2),
    (_TEXT_AND_CALL_SHAPE, True, 1),
)
_REASONING, _TEXT, _QUESTION = (
    "I weigh it: first A, then B.",
    "Let me look.",
    "What is the weather?",
)
_CALL_ARGUMENTS: tuple[dict[str, Any], ...] = (
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


def _run_shape(pairing: TemplatePairing, shape: str, text: bool, calls: int) -> SelfTestOutcome:
    if calls and pairing.tool_parser is None:
        return SelfTestOutcome(shape)
    try:
        prompt, output = _render_output(pairing, text, calls)
        outcome = _compare(pairing, shape, prompt, output)
        if not outcome.ok and shape == _TEXT_SHAPE:
            later = _compare(pairing, shape, *_render_answered(pairing))
            return later if later.ok else outcome
        return outcome
    except RenderError as error:
        return SelfTestOutcome(shape, refused=str(error))


def _compare(pairing: TemplatePairing, shape: str, prompt: str, output: str) -> SelfTestOutcome:
    inside = opens_reasoning(prompt[-200:], pairing.tool_parser, pairing.reasoning_parser)
    answer = parse(
        output,
        tool_parser=pairing.tool_parser,
        reasoning_parser=pairing.reasoning_parser,
        tools=[_TOOL],
        in_reasoning=inside,
    )
    put_in, got = _expected_items(output, shape), _parsed_items(answer)
    return SelfTestOutcome(
        shape,
        lost=tuple(_format_item(item) for item in put_in if item not in got),
        leaked=tuple(_format_item(item) for item in got if item not in put_in),
    )


def _render_output(pairing: TemplatePairing, text: bool, calls: int) -> tuple[str, str]:
    """The end of the prompt, and what the model would have written behind it.

    A template that does not repeat the thought which its prompt opens takes thoughts apart in
    history: there only the rest of the turn can be compared.
    """
    prompt, turn = _render(pairing, [_assistant_message(pairing, text, calls)])
    if not turn.startswith(prompt.rstrip()):
        prompt, turn = _render(pairing, [_assistant_message(pairing, text, calls, reasoning=False)])
    beginning = common_prefix(prompt, turn)
    return beginning, _strip_stop(turn[len(beginning) :], pairing)


def _render_answered(pairing: TemplatePairing) -> tuple[str, str]:
    """An answer that the user has reacted to: a few templates treat the very last one specially."""
    follow: SelfTestMessage = {
        "role": "user",
        "content": _format_content(pairing.profile, "Thanks."),
    }
    prompt, text = _render(pairing, [_assistant_message(pairing, True, 0), follow])
    beginning = common_prefix(prompt, text)
    return beginning, text[len(beginning) : text.rindex(_TEXT) + len(_TEXT)]


def _assistant_message(
    pairing: TemplatePairing, text: bool, calls: int, reasoning: bool = True
) -> SelfTestMessage:
    facts = pairing.profile
    said: SelfTestMessage = {"role": "assistant", "content": _TEXT if text else ""}
    if calls:
        said["tool_calls"] = [_tool_call(facts, i) for i in range(calls)]
        if facts.wants_null and not text:
            said["content"] = None
    if pairing.reasoning_parser is None or not reasoning:
        return said
    for field in facts.reasoning_fields or (("content",) if facts.thinking_parts else ()):
        said = add_reasoning(said, field, _REASONING)
    return said


def _tool_call(profile: TemplateProfile, index: int) -> SelfTestMessage:
    values = _CALL_ARGUMENTS[index]
    given = json.dumps(values, ensure_ascii=False) if profile.arguments == "string" else values
    ids = {"kimi": f"functions.get_weather:{index}"}
    function = {"name": "get_weather", "arguments": given}
    name = ids.get(profile.call_ids, f"call0000{index}")
    return {"id": name, "type": "function", "function": function}


def _render(pairing: TemplatePairing, turns: list[SelfTestMessage]) -> tuple[str, str]:
    """The prompt that asks for the first turn, and the conversation with all of them."""
    ask: SelfTestMessage = {"role": "user", "content": _format_content(pairing.profile, _QUESTION)}
    messages, tools = [ask, *turns], [_TOOL]
    if needs_fallback(pairing.profile):
        messages = to_plain_messages(messages, tools, pairing.profile, pairing.tool_parser)
        tools = tools if pairing.profile.renders_tools else []
    template, switches = pairing.template, pairing.switches
    asking = messages[: len(messages) - len(turns)]
    prompt = template.render(asking, tools, add_generation_prompt=True, switches=switches)
    text = template.render(messages, tools, add_generation_prompt=False, switches=switches)
    if prompt == template.render(asking, tools, add_generation_prompt=False, switches=switches):
        text = _strip_common_suffix(text, prompt)  # it asks for a turn whether told to or not
    return prompt, text


def _strip_common_suffix(text: str, prompt: str) -> str:
    pairs = zip(reversed(text), reversed(prompt), strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return text[: len(text) - same]


def _format_content(profile: TemplateProfile, text: str) -> str | list[SelfTestMessage]:
    return text if profile.content == "string" else [{"type": "text", "text": text}]


def _strip_stop(output: str, pairing: TemplatePairing) -> str:
    """The output without the tokens that end it: tags at its end that are no markers."""
    known = markers(pairing.tool_parser, pairing.reasoning_parser)
    while True:
        stop = _STOP_TAG.search(output)
        if stop is None or any(marker.endswith(stop[1]) for marker in known):
            return output
        output = output[: stop.start()]


_STOP_TAG = re.compile(r"\s*(<[^<>\s]{1,40}>|\[[^\[\]\s]{1,20}\[)\s*\Z")


def _expected_items(output: str, shape: str) -> list[tuple[str, str]]:
    """What the template showed of the turn; a thought that it did not show cannot come back."""
    _, text, calls = next(known for known in _SHAPES if known[0] == shape)
    items = [("reasoning", _REASONING)] if _REASONING in output else []
    items += [("text", _TEXT)] if text else []
    return items + [("call", _canonical_json(values)) for values in _CALL_ARGUMENTS[:calls]]


def _parsed_items(message: Answer) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for block in message.blocks:
        if block.type == "tool_call":
            found.append(("call", _canonical_arguments(block.arguments)))
        elif block.text.strip():
            found.append((block.type, block.text.strip()))
    return found


def _canonical_arguments(text: str) -> str:
    try:
        return _canonical_json(json.loads(text))
    except ValueError:
        return text


def _canonical_json(values: object) -> str:
    return json.dumps(values, ensure_ascii=False, sort_keys=True)


def _format_item(item: tuple[str, str]) -> str:
    kind, text = item
    return f"{kind}: {text if len(text) < 120 else text[:117] + '...'}"


def _find_notes(pairing: TemplatePairing) -> tuple[str, ...]:
    opener = pairing.profile.opens_thought
    if opener and pairing.reasoning_parser is None:
        return ("the prompt opens a thought, but there is no reasoning parser: it will be text",)
    if opener and not opens_reasoning(opener, pairing.tool_parser, pairing.reasoning_parser):
        return (
            f"the reasoning parser does not know the thought that the prompt opens: {opener!r}",
        )
    return ()
