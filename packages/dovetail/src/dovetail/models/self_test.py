"""Test whether a template and its parsers match: render a turn, parse it, compare."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from dovetail.models.template_probe.context import add_reasoning, common_prefix
from dovetail.prompt.template import ChatTemplate, RenderError, TemplateProfile
from dovetail.prompt.tool_fallback import needs_fallback, to_plain_messages
from dovetail_model import Message
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
    """The result for one shape of turn.

    `lost`: items that were rendered but not parsed.
    `leaked`: items that were parsed but not rendered.
    `refused`: the error of the template if it rejects the turn.
    """

    shape: str
    lost: tuple[str, ...] = ()
    leaked: tuple[str, ...] = ()
    refused: str = ""

    @property
    def ok(self) -> bool:
        return not (self.lost or self.leaked or self.refused)


@dataclass(frozen=True)
class SelfTestReport:
    """The results of all shapes. Text with calls may fail, since many models never generate it."""

    outcomes: tuple[SelfTestOutcome, ...]
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return all(outcome.ok for outcome in self.outcomes if outcome.shape != _TEXT_AND_CALL_SHAPE)


def run_self_test(pairing: TemplatePairing) -> SelfTestReport:
    """Test the shapes of turns that agents produce."""
    profile = pairing.profile
    skipped = set() if profile.many_calls or not profile.renders_calls else {_PARALLEL_SHAPE}
    skipped |= set() if profile.text_with_calls else {_TEXT_AND_CALL_SHAPE}
    tried = (shape for shape in _SHAPES if shape[0] not in skipped)
    return SelfTestReport(
        tuple(_run_shape(pairing, *shape) for shape in tried), _find_notes(pairing)
    )


_TEXT_SHAPE, _PARALLEL_SHAPE, _TEXT_AND_CALL_SHAPE = "answer", "two calls", "text and call"
#: The shapes of turns: name, whether it has text, number of calls.
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
            earlier_turn = _compare(pairing, shape, *_render_text_before_user(pairing))
            return earlier_turn if earlier_turn.ok else outcome
        return outcome
    except RenderError as error:
        return SelfTestOutcome(shape, refused=str(error))


def _compare(pairing: TemplatePairing, shape: str, prompt: str, output: str) -> SelfTestOutcome:
    inside = opens_reasoning(prompt[-200:], pairing.tool_parser, pairing.reasoning_parser)
    message = parse(
        output,
        tool_parser=pairing.tool_parser,
        reasoning_parser=pairing.reasoning_parser,
        tools=[_TOOL],
        in_reasoning=inside,
    )
    expected, parsed = _expected_items(output, shape), _parsed_items(message)
    return SelfTestOutcome(
        shape,
        lost=tuple(_format_item(item) for item in expected if item not in parsed),
        leaked=tuple(_format_item(item) for item in parsed if item not in expected),
    )


def _render_output(pairing: TemplatePairing, text: bool, calls: int) -> tuple[str, str]:
    """Render the end of the prompt and the output that the model would generate after it.

    A template that does not render the reasoning opened by its prompt removes reasoning from the
    history. In this case only the rest of the turn can be compared.
    """
    prompt, turn = _render(pairing, [_assistant_message(pairing, text, calls)])
    if not turn.startswith(prompt.rstrip()):
        prompt, turn = _render(pairing, [_assistant_message(pairing, text, calls, reasoning=False)])
    beginning = common_prefix(prompt, turn)
    return beginning, _strip_stop(turn[len(beginning) :], pairing)


def _render_text_before_user(pairing: TemplatePairing) -> tuple[str, str]:
    """Render a text turn before a user turn: a few templates render the last turn differently."""
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
    profile = pairing.profile
    message: SelfTestMessage = {"role": "assistant", "content": _TEXT if text else ""}
    if calls:
        message["tool_calls"] = [_tool_call(profile, i) for i in range(calls)]
        if profile.wants_null and not text:
            message["content"] = None
    if pairing.reasoning_parser is None or not reasoning:
        return message
    for field in profile.reasoning_fields or (("content",) if profile.thinking_parts else ()):
        message = add_reasoning(message, field, _REASONING)
    return message


def _tool_call(profile: TemplateProfile, index: int) -> SelfTestMessage:
    values = _CALL_ARGUMENTS[index]
    given = json.dumps(values, ensure_ascii=False) if profile.arguments == "string" else values
    ids = {"kimi": f"functions.get_weather:{index}"}
    function = {"name": "get_weather", "arguments": given}
    name = ids.get(profile.call_ids, f"call0000{index}")
    return {"id": name, "type": "function", "function": function}


def _render(pairing: TemplatePairing, turns: list[SelfTestMessage]) -> tuple[str, str]:
    """Render the prompt of the first turn and the conversation with all turns."""
    question: SelfTestMessage = {
        "role": "user",
        "content": _format_content(pairing.profile, _QUESTION),
    }
    messages, tools = [question, *turns], [_TOOL]
    if needs_fallback(pairing.profile):
        messages = to_plain_messages(messages, tools, pairing.profile, pairing.tool_parser)
        tools = tools if pairing.profile.renders_tools else []
    template, switches = pairing.template, pairing.switches
    prompt_messages = messages[: len(messages) - len(turns)]
    prompt = template.render(prompt_messages, tools, add_generation_prompt=True, switches=switches)
    text = template.render(messages, tools, add_generation_prompt=False, switches=switches)
    if prompt == template.render(
        prompt_messages, tools, add_generation_prompt=False, switches=switches
    ):
        # The template always appends a generation prompt.
        text = _strip_common_suffix(text, prompt)
    return prompt, text


def _strip_common_suffix(text: str, prompt: str) -> str:
    pairs = zip(reversed(text), reversed(prompt), strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return text[: len(text) - same]


def _format_content(profile: TemplateProfile, text: str) -> str | list[SelfTestMessage]:
    return text if profile.content == "string" else [{"type": "text", "text": text}]


def _strip_stop(output: str, pairing: TemplatePairing) -> str:
    """Remove the stop tokens of an output: tags at its end that are not markers."""
    known = markers(pairing.tool_parser, pairing.reasoning_parser)
    while True:
        stop = _STOP_TAG.search(output)
        if stop is None or any(marker.endswith(stop[1]) for marker in known):
            return output
        output = output[: stop.start()]


_STOP_TAG = re.compile(r"\s*(<[^<>\s]{1,40}>|\[[^\[\]\s]{1,20}\[)\s*\Z")


def _expected_items(output: str, shape: str) -> list[tuple[str, str]]:
    """Return the items that the template rendered, without reasoning that it dropped."""
    _, text, calls = next(known for known in _SHAPES if known[0] == shape)
    items = [("reasoning", _REASONING)] if _REASONING in output else []
    items += [("text", _TEXT)] if text else []
    return items + [("call", _canonical_json(values)) for values in _CALL_ARGUMENTS[:calls]]


def _parsed_items(message: Message) -> list[tuple[str, str]]:
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
    opener = pairing.profile.reasoning_opener
    if opener and pairing.reasoning_parser is None:
        return ("the prompt opens reasoning, but there is no reasoning parser: it becomes text",)
    if opener and not opens_reasoning(opener, pairing.tool_parser, pairing.reasoning_parser):
        return (f"the reasoning parser does not recognize the opener in the prompt: {opener!r}",)
    return ()
