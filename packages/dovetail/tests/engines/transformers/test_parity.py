"""Dovetail's rendering compared with transformers' `apply_chat_template`, if that is installed.

Both render every conversation with every template, or both reject it. One difference is intended:
transformers' immutable sandbox rejects templates that modify lists (`append`), which work here.
"""

import json
from collections.abc import Callable
from datetime import datetime
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from jinja2 import TemplateError
from real_models import TEMPLATES

from dovetail.prompt.template import ChatTemplate, RenderError

PATHS = sorted(TEMPLATES.glob("*.jinja"))
pytestmark = pytest.mark.skipif(not PATHS, reason="no folder of chat templates at hand")

SPECIALS = {"bos_token": "<BOS>", "eos_token": "<EOS>"}
SWITCHES: list[dict[str, Any]] = [
    {},
    {"enable_thinking": True, "thinking": True, "functions": "[]", "datetime": "noon"},
    {"enable_thinking": False, "thinking": False},
    {"reasoning_effort": "high", "clear_thinking": False, "truncate_history_thinking": False},
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Schaut nach – «ça» 🦜.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Where <b>."},
                    "days": {"type": "integer", "enum": [1, 2]},
                    "deep": {"type": "object", "properties": {"a": {"type": ["string", "null"]}}},
                },
                "required": ["city"],
            },
        },
    }
    for name in ("get_weather", "other_tool")
]
SIMPLE = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Looks.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "Where."}},
                "required": ["city"],
            },
        },
    }
]


def _assistant(text: str | None, reasoning: str = "", **more: Any) -> dict[str, Any]:
    fields = {"reasoning_content": reasoning, "thinking": reasoning} if reasoning else {}
    return {"role": "assistant", "content": text, **fields, **more}


def _calls(*arguments: Any, text: str | None = "", reasoning: str = "") -> dict[str, Any]:
    calls = [
        {
            "id": f"call0000{i}",
            "type": "function",
            "function": {"name": "get_weather", "arguments": given},
        }
        for i, given in enumerate(arguments)
    ]
    return _assistant(text, reasoning, tool_calls=calls)


def _result(place: int = 0, text: str = "It's <sunny> & 20 °C") -> dict[str, Any]:
    call = f"call0000{place}"
    return {"role": "tool", "tool_call_id": call, "name": "get_weather", "content": text}


USER = {"role": "user", "content": 'Hé 🦜 <|im_end|> & "so"\n\n  on '}
MORE = {"role": "user", "content": "More?"}
SYSTEM = {"role": "system", "content": "  Be brief.\n"}
FIRST: dict[str, Any] = {"city": 'Paris "é"\n', "days": 3, "deep": {"a": None}, "list": [1, 2.5]}
PARTS = {
    "role": "user",
    "content": [{"type": "text", "text": "in "}, {"type": "text", "text": "two"}],
}

CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "plain": [USER],
    "system": [SYSTEM, USER],
    "developer": [{**SYSTEM, "role": "developer"}, USER],
    "parts": [PARTS],
    "answer last": [USER, _assistant("Fine. ")],
    "turns": [SYSTEM, USER, _assistant(" Fine."), MORE],
    "consecutive users": [USER, MORE],
    "system inside": [USER, _assistant("Fine."), SYSTEM, MORE],
    "unknown role": [USER, {"role": "critic", "content": "Hm."}],
    "call": [USER, _calls(FIRST), _result()],
    "call as string": [USER, _calls(json.dumps(FIRST, ensure_ascii=False)), _result()],
    "call with null": [USER, _calls(FIRST, text=None), _result()],
    "call with text": [
        USER,
        _calls(FIRST, text="Let me see."),
        _result(),
        _assistant("Sunny."),
        MORE,
    ],
    "call without arguments": [USER, _calls({}), _result()],
    "two calls": [USER, _calls(FIRST, {"city": "Oslo"}), _result(), _result(1, '{"t": 1}')],
    "results in parts": [USER, _calls(FIRST), {**_result(), "content": PARTS["content"]}],
    "thought": [USER, _assistant("Fine.", "I weigh it.\n"), MORE],
    "thought inside text": [USER, _assistant("<think>\nI weigh it.\n</think>\n\nFine."), MORE],
    "thoughts in a loop": [
        SYSTEM,
        USER,
        _calls(FIRST, reasoning="first"),
        _result(),
        _calls({"city": "Oslo"}, reasoning="second"),
        _result(),
        _assistant("Done.", "third"),
        MORE,
        _calls(FIRST, reasoning="fourth"),
        _result(),
    ],
    "steering": [USER, _calls(FIRST, reasoning="first"), _result(), MORE],
}

#: Appends to a list of its own, which the immutable sandbox forbids.
MUTATES = {"Kimi-K2-Instruct", "Kimi-K2-Thinking"}


class Case(NamedTuple):
    conversation: str
    tools: list[dict[str, Any]] | None
    generation: bool
    switches: dict[str, Any]


CASES = [
    Case(*parts) for parts in product(CONVERSATIONS, (None, SIMPLE, TOOLS), (True, False), SWITCHES)
]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_equal_to_transformers(path: Path) -> None:
    theirs = pytest.importorskip("transformers.utils.chat_template_utils").render_jinja_template
    noon = datetime.now().replace(hour=12)
    ours = ChatTemplate(path.read_text(), SPECIALS, clock=lambda: noon)
    shown = 0
    for case in CASES:
        found, expected = _ours(ours, case), _theirs(theirs, ours.text, case)
        if expected is not None or path.stem not in MUTATES:
            assert found == expected, case
        shown += expected is not None
    assert shown > len(CASES) / 10 or path.stem in MUTATES | {
        "fireworks-ai-llama-3-firefunction-v2"
    }


def _ours(template: ChatTemplate, case: Case) -> str | None:
    """Return the rendered text; None if the template rejects the conversation."""
    messages = CONVERSATIONS[case.conversation]
    try:
        return template.render(
            messages, case.tools, add_generation_prompt=case.generation, switches=case.switches
        )
    except RenderError:
        return None


def _theirs(render: Callable[..., Any], text: str, case: Case) -> str | None:
    try:
        rendered, _ = render(
            conversations=[CONVERSATIONS[case.conversation]],
            tools=case.tools,
            chat_template=text,
            add_generation_prompt=case.generation,
            **SPECIALS,
            **case.switches,
        )
    except (TemplateError, TypeError, ValueError, KeyError, AttributeError):
        return None
    return str(rendered[0])
