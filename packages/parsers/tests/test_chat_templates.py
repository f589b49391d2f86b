"""Real chat templates: parsing a rendered assistant turn returns the turn.

Each template renders reasoning, text and two calls. The assistant's part is extracted as the model
would have generated it (after the generation prompt) and parsed by the family that `resolve_family`
finds in the template's text. Everything that a template shows must be restored. The tests are
skipped if the templates are not available.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Template, TemplateError
from jinja2.exceptions import UndefinedError
from jinja2.ext import Extension
from jinja2.nodes import Node
from jinja2.parser import Parser as JinjaParser
from jinja2.sandbox import SandboxedEnvironment

from dovetail_model import Message
from dovetail_parsers import parse, resolve_family
from dovetail_parsers.grammar import ReasoningFormat
from dovetail_parsers.registry import load_grammar

FOLDER = Path(
    os.environ.get("DOVETAIL_TEMPLATES")
    or Path(__file__).parents[4] / "shared" / "data" / "templates"
)
TEMPLATES = sorted(FOLDER.glob("*.jinja"))
pytestmark = pytest.mark.skipif(not TEMPLATES, reason="no folder of chat templates at hand")

REASONING, TEXT, USER = "I weigh it: first A, then B.", "Let me look.", "What is the weather?"
FIRST = {
    "city": 'Paris "the city"\nof é 🦜',
    "days": 3,
    "metric": True,
    "options": {"depth": 2, "name": "x"},
    "tags": ["a", "b"],
}
SECOND = {"city": "Oslo"}
TOOLS = [
    {
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
                    "options": {
                        "type": "object",
                        "description": "More.",
                        "properties": {"depth": {"type": "integer"}, "name": {"type": "string"}},
                    },
                    "tags": {"type": "array", "description": "T.", "items": {"type": "string"}},
                },
                "required": ["city"],
            },
        },
    }
]

#: Templates that do not render calls, or not in a form that a model generates.
EXCUSED = {
    "CohereForAI-c4ai-command-r-plus-tool_use": "writes calls as a fenced list in prose",
    "HuggingFaceTB-SmolLM3-3B": "does not render calls in history",
    "LFM2-8B-A1B": "does not render calls in history",
    "LFM2.5-Instruct": "does not render calls in history",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "does not render calls in history",
    "fireworks-ai-llama-3-firefunction-v2": "wants its tools in a variable of its own",
    "google-gemma-2-2b-it": "knows no tools",
    "ibm-granite-granite-3.3-2B-Instruct": "does not render calls in history",
    "llama-cpp-deepseek-r1": "cannot be rendered with tools",
    "llama-cpp-rwkv-world": "knows no tools",
    "meetkai-functionary-medium-v3.1": "a format that none of the parser names means",
    "meetkai-functionary-medium-v3.2": "a format that none of the parser names means",
    "microsoft-Phi-3.5-mini-instruct": "knows no tools",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "ends the turn between calls and text",
    "NVIDIA-Nemotron-Nano-v2": "ends the turn between text and calls",
}

#: Writes text that accompanies calls into the reasoning channel.
TEXT_IN_REASONING = {"openai-gpt-oss-120b"}


class _Generation(Extension):
    """`{% generation %}` marks the assistant's part; rendering ignores it."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: JinjaParser) -> Node | list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _compile(path: Path) -> Template:
    environment = SandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: "2026-01-01"
    return environment.from_string(path.read_text())


def _turn(strings: bool, calls: int) -> dict[str, Any]:
    arguments: list[Any] = [FIRST, SECOND][:calls]
    return {
        "role": "assistant",
        "content": TEXT,
        "reasoning_content": REASONING,
        "reasoning": REASONING,
        "tool_calls": [
            {
                "id": f"call0000{i}",
                "type": "function",
                "function": {"name": "get_weather", "arguments": json.dumps(a) if strings else a},
            }
            for i, a in enumerate(arguments)
        ],
    }


def _render(template: Template) -> tuple[str, str, str]:
    """Return the conversation up to the assistant, with a generation prompt, and with the turn."""
    user = {"role": "user", "content": USER}
    for strings, calls in ((False, 2), (True, 2), (False, 1)):
        shared = {
            "tools": TOOLS,
            "bos_token": "<BOS>",
            "eos_token": "<EOS>",
            "enable_thinking": True,
            "thinking": True,
        }
        try:
            turn = template.render(messages=[user, _turn(strings, calls)], **shared)
            prompt = template.render(messages=[user], add_generation_prompt=True, **shared)
            return template.render(messages=[user], **shared), prompt, turn
        except (TemplateError, UndefinedError, TypeError):
            continue
    raise AssertionError("the template renders no call at all")


def _shared(one: str, other: str) -> str:
    """Return the common prefix of two texts."""
    differs = (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return one[: next(differs, min(len(one), len(other)))]


def _generated(plain: str, prompt: str, turn: str, markers: set[str]) -> tuple[str, str]:
    """Return the end of the prompt and the model's output, without the stop token."""
    shared = _shared(prompt, turn)
    if shared.endswith("<"):
        shared = shared[:-1]
    output = turn[len(shared) :]
    while True:
        stop = re.search(r"\s*(<[^<>\s]{1,40}>|\[e~\[|</assistant>)\s*\Z", output)
        if stop is None or any(marker.endswith(stop[1]) for marker in markers):
            return shared[len(_shared(plain, shared)) :], output
        output = output[: stop.start()]


def _seen(message: Message) -> list[object]:
    return [
        (b.name, json.loads(b.arguments)) if b.type == "tool_call" else (b.type, b.text)
        for b in message.blocks
    ]


def _opened(opening: str, output: str, form: ReasoningFormat | None) -> bool:
    """Whether the output starts inside reasoning: opened before, or closed without an opener."""
    if form is None:
        return False
    if opening.rstrip().endswith(tuple(opener.rstrip() for opener in form.openers)):
        return True
    before_closer = output.split(form.closers[0])[0]
    closes = before_closer != output
    return closes and not any(opener in before_closer for opener in form.openers)


def _expected(output: str, text_kind: str) -> list[object]:
    """Return what the template rendered, in order."""
    shown: list[tuple[int, object]] = []
    if REASONING in output:
        shown.append((output.index(REASONING), ("reasoning", REASONING)))
    if TEXT in output:
        shown.append((output.index(TEXT), (text_kind, TEXT)))
    shown.append((output.index("Paris"), ("get_weather", FIRST)))
    if "Oslo" in output:
        shown.append((output.index("Oslo"), ("get_weather", SECOND)))
    return [block for _, block in sorted(shown, key=lambda pair: pair[0])]


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_rendered_turn_parses_to_itself(path: Path) -> None:
    if path.stem in EXCUSED:
        pytest.skip(EXCUSED[path.stem])
    family = resolve_family(path.read_text())
    assert family is not None
    table = load_grammar(family.tool_parser, family.reasoning_parser)
    markers = {marker for state in table.states.values() for marker in state.edges}
    opening, output = _generated(*_render(_compile(path)), markers)
    message = parse(
        output,
        tool_parser=family.tool_parser,
        reasoning_parser=family.reasoning_parser,
        tools=TOOLS,
        in_reasoning=_opened(opening, output, table.reasoning),
    )
    text_kind = "reasoning" if path.stem in TEXT_IN_REASONING else "text"
    assert _seen(message) == _expected(output, text_kind)
    assert message.raw == output


def test_every_exception_names_a_template() -> None:
    assert set(EXCUSED) | TEXT_IN_REASONING <= {path.stem for path in TEMPLATES}
