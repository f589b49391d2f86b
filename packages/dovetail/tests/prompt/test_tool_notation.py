"""The notation of a tool: isolated from the tool list of every template."""

import json
from pathlib import Path

import pytest
from real_models import TEMPLATES

from dovetail.models.template_probe import probe_template
from dovetail.prompt.template import ChatTemplate
from dovetail.prompt.tool_notation import ToolNotation
from dovetail_model import ToolSpec

TOOL = ToolSpec(
    "WebFetch",
    "Fetches a page.",
    {"type": "object", "properties": {"url": {"type": "string"}, "depth": {"type": "integer"}}},
)


def _write(source: str, controls: tuple[str, ...] = ()) -> tuple[str, bool]:
    template = ChatTemplate(source)
    return ToolNotation(template, probe_template(template, {}), controls).write(TOOL)


_MESSAGES = "{% for m in messages %}<m>{{ m.role }}: {{ m.content }}</m>{% endfor %}"
_PYTHON_LIST = (
    "{% for t in tools %}def {{ t.function.name }}("
    "{{ t.function.parameters.properties | join(', ') }})\n{% endfor %}"
)
_DEFINITION = '{"type": "function", "function": {"name": "WebFetch"'


@pytest.mark.parametrize(
    ("tool_list", "start", "end"),
    [
        ("{% for t in tools %}\n{{ t | tojson }}{% endfor %}", _DEFINITION, "}}}"),
        ("[TOOLS]{{ tools | tojson }}[/TOOLS]", _DEFINITION, "}}}"),
        ("<tools>{% for t in tools %}<tool>{{ t | tojson }}</tool>{% endfor %}</tools>",
         "<tool>" + _DEFINITION, "}</tool>"),
        (_PYTHON_LIST, "def WebFetch(url, depth)", "url, depth)"),
    ],
)  # fmt: skip
def test_text_of_one_tool_is_isolated(tool_list: str, start: str, end: str) -> None:
    text, is_native = _write("{% if tools %}" + tool_list + "{% endif %}" + _MESSAGES)
    assert is_native
    assert text.startswith(start)
    assert text.endswith(end)


@pytest.mark.parametrize(
    ("source", "controls"),
    [
        (_MESSAGES, ()),  # no tool list
        ("{% for t in tools %}<|tool|>{{ t | tojson }}{% endfor %}" + _MESSAGES, ("<|tool|>",)),
        ("{{ tools | length }} tools: {{ tools | tojson }}" + _MESSAGES, ()),
        ("{% for t in tools %}{{ t.function.name }} {% endfor %}" + _MESSAGES, ()),  # no schema
    ],
)
def test_other_notations_are_replaced_with_json(source: str, controls: tuple[str, ...]) -> None:
    text, is_native = _write(source, controls)
    assert not is_native
    assert json.loads(text)["function"]["name"] == "WebFetch"


_SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
_JSON_ONLY = {  # the text around a tool depends on the other tools
    "CohereForAI-c4ai-command-r-plus-tool_use",
    "muse-glimmer",
}
_UNBALANCED = ("NousResearch-Hermes-2", "NousResearch-Hermes-3")  # in the template itself
_UNRENDERABLE = "fireworks-ai-llama-3-firefunction-v2"  # requires variables of its own


@pytest.mark.parametrize("path", sorted(TEMPLATES.glob("*.jinja")), ids=lambda path: path.stem)
def test_real_templates_give_a_complete_definition(path: Path) -> None:
    if path.stem == _UNRENDERABLE:
        pytest.skip("the template requires variables that no request has")
    template = ChatTemplate(path.read_text(), _SPECIAL_TOKENS)
    profile = probe_template(template, {})
    text, is_native = ToolNotation(template, profile, ()).write(TOOL)
    assert all(word in text for word in ("WebFetch", "Fetches a page.", "url", "depth"))
    for opening, closing in ("{}", "[]", "()") if not path.stem.startswith(_UNBALANCED) else ():
        assert text.count(opening) == text.count(closing)
    assert is_native == (profile.renders_tools and path.stem not in _JSON_ONLY)
