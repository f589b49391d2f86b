"""The sandbox provides only the functions that Hugging Face provides."""

from collections import OrderedDict
from datetime import datetime
from types import MappingProxyType
from typing import Any

import pytest
from jinja2 import TemplateSyntaxError

from dovetail.prompt.template import CachedJsonObject, ChatTemplate, RenderError, compile_template

NOON = datetime(2026, 5, 4, 12)


def render(text: str, **values: Any) -> str:
    return compile_template(text, lambda: NOON).render(**values)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{ {'a': 'é<b>'} | tojson }}", '{"a": "é<b>"}'),
        ("{{ [1, 2] | tojson(separators=(',', ':')) }}", "[1,2]"),
        ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }}", '{"a": 2, "b": 1}'),
        ("{{ {'a': [1]} | tojson(indent=2) }}", '{\n  "a": [\n    1\n  ]\n}'),
        ("{{ strftime_now('%d %b %Y') }}", "04 May 2026"),
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "1"),
        ("a{% generation %}b{% endgeneration %}c", "abc"),
        ("{% set x = 1 %}{% generation %}{% set x = 2 %}{% endgeneration %}{{ x }}", "1"),
        ("{% set l = [] %}{% set _ = l.append(1) %}{{ l }}", "[1]"),
    ],
)
def test_templates_have_the_hugging_face_functions(text: str, expected: str) -> None:
    assert render(text) == expected


def test_any_mapping_is_encoded_as_json() -> None:
    value = MappingProxyType({"a": OrderedDict(b=1)})
    assert render("{{ v | tojson }}", v=value) == '{"a": {"b": 1}}'


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{% include 'x' %}",
        "{{ 1 / 0 }}",
        "{{ undefined_thing.field }}",
        "{{ raise_exception('no') }}",
        "{{ messages | tojson(nonsense=1) }}",
        "{{ range(10 ** 9) | list }}",
    ],
)
def test_forbidden_operations_raise_render_errors(text: str) -> None:
    template = ChatTemplate(text)
    with pytest.raises(RenderError):
        template.render([{"role": "user", "content": "hi"}])


def test_switches_cannot_replace_the_conversation() -> None:
    template = ChatTemplate("{{ messages[0].content }}{{ bos_token }}", {"bos_token": "<s>"})
    stolen = {"messages": [{"content": "other"}], "bos_token": "<t>"}
    assert template.render([{"content": "mine"}], switches=stolen) == "mine<t>"


def test_an_invalid_template_is_rejected() -> None:
    with pytest.raises(TemplateSyntaxError):
        ChatTemplate("{% if %}")


def test_an_object_is_encoded_once_per_options(monkeypatch: pytest.MonkeyPatch) -> None:
    tool = CachedJsonObject(name="é", parameters={"a": [1, {"b": 2}]})
    text = "{{ v | tojson }}{{ v | tojson(indent=2) }}{{ v | tojson(separators=[',', ':']) }}"
    expected = render(text, v=dict(tool))
    assert render(text, v=tool) == expected
    monkeypatch.setattr("json.dumps", None)
    assert render(text, v=tool) == expected


@pytest.mark.parametrize(
    "change", ["v.update({'x': 1})", "v.a.append(3)", "v.a[1].update({'b': 3})", "v.pop('a')"]
)
def test_an_object_changed_by_a_template_is_encoded_again(change: str) -> None:
    text = f"{{{{ v | tojson }}}}{{% set _ = {change} %}}{{{{ v | tojson }}}}"
    assert render(text, v=CachedJsonObject(a=[1, {"b": 2}])) == render(text, v={"a": [1, {"b": 2}]})
