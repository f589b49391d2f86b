"""The shapes of tool calls on the wire: one well-formed call of every family, in its parts.

The generators of malformed output (`malformed_outputs`) edit these parts, so that each slip is made
for every family of a shape.
"""

from dataclasses import dataclass, field
from enum import Enum

from dovetail_parsers import families


class Shape(Enum):
    JSON_OBJECT = "JSON object in a wrapper"
    JSON_LIST = "JSON list in a wrapper"
    NAME_AND_JSON = "name, then JSON arguments"
    TAGS = "tags with raw values"
    TREE = "tree of tags"
    BRACED = "braced notation"
    PYTHONIC = "Python calls"


@dataclass(frozen=True)
class Wire:
    """A call of `get_weather` with the city Paris: `opener + call + closer`.

    `value_closer` ends the value Paris. `special` families write their markers as special tokens.
    """

    family: str
    shape: Shape
    opener: str
    call: str
    closer: str
    value_closer: str = ""
    in_message: tuple[str, str] = field(default=("", ""))

    @property
    def text(self) -> str:
        return self.opener + self.call + self.closer


def _json(name: str = "name", arguments: str = "arguments") -> str:
    return f'{{"{name}": "get_weather", "{arguments}": {{"city": "Paris"}}}}'


_OBJECT, _ARGUMENTS = _json(), '{"city": "Paris"}'
_DSML = (
    '<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">Paris'
    "</｜DSML｜parameter>\n</｜DSML｜invoke>"
)
_INVOKE = '<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n</invoke>'
_M3 = "]<]minimax[>["

WIRES = [
    Wire("hermes", Shape.JSON_OBJECT, "<tool_call>\n", _OBJECT, "\n</tool_call>"),
    Wire("ernie45", Shape.JSON_OBJECT, "<tool_call>\n", _OBJECT, "\n</tool_call>"),
    Wire("longcat", Shape.JSON_OBJECT, "<longcat_tool_call>\n", _OBJECT, "\n</longcat_tool_call>"),
    Wire("granite-20b-fc", Shape.JSON_OBJECT, "<function_call>", _OBJECT, ""),
    Wire("gigachat3", Shape.JSON_OBJECT, "<|function_call|>", _OBJECT, ""),
    Wire("llama3_json", Shape.JSON_OBJECT, "<|python_tag|>", _json(arguments="parameters"), ""),
    Wire(
        "internlm",
        Shape.JSON_OBJECT,
        "<|action_start|><|plugin|>",
        _json(arguments="parameters"),
        "<|action_end|>",
    ),
    Wire(
        "inkling",
        Shape.JSON_OBJECT,
        "<|message_model|><|content_invoke_tool_json|>",
        _json(arguments="args"),
        "<|end_message|>",
    ),
    Wire("mistral", Shape.JSON_LIST, "[TOOL_CALLS]", f"[{_OBJECT}]", ""),
    Wire("jamba", Shape.JSON_LIST, "<tool_calls>", f"[{_OBJECT}]", "</tool_calls>"),
    Wire("nemotron_deci", Shape.JSON_LIST, "<TOOLCALL>", f"[{_OBJECT}]", "</TOOLCALL>"),
    Wire("granite", Shape.JSON_LIST, "<|tool_call|>", f"[{_OBJECT}]", ""),
    Wire("phi4", Shape.JSON_LIST, "functools", f"[{_OBJECT}]", ""),
    Wire("xlam", Shape.JSON_LIST, "<tool_call>", f"[{_OBJECT}]", "</tool_call>"),
    Wire("default", Shape.JSON_LIST, "<TOOLCALL>", f"[{_OBJECT}]", "</TOOLCALL>"),
    Wire(
        "cohere_command3",
        Shape.JSON_LIST,
        "<|START_ACTION|>",
        f"[{_json('tool_name', 'parameters')}]",
        "<|END_ACTION|>",
    ),
    Wire(
        "apertus",
        Shape.JSON_LIST,
        "<|tools_prefix|>",
        '[{"get_weather": {"city": "Paris"}}]',
        "<|tools_suffix|>",
    ),
    Wire("mistral", Shape.NAME_AND_JSON, "[TOOL_CALLS]", f"get_weather[ARGS]{_ARGUMENTS}", ""),
    Wire(
        "deepseek_v3",
        Shape.NAME_AND_JSON,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",
        f"function<｜tool▁sep｜>get_weather\n```json\n{_ARGUMENTS}\n```",
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    Wire(
        "deepseek_v3_1",
        Shape.NAME_AND_JSON,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",
        f"get_weather<｜tool▁sep｜>{_ARGUMENTS}",
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    Wire(
        "kimi_k2",
        Shape.NAME_AND_JSON,
        "<|tool_calls_section_begin|><|tool_call_begin|>",
        f"functions.get_weather:0<|tool_call_argument_begin|>{_ARGUMENTS}",
        "<|tool_call_end|><|tool_calls_section_end|>",
    ),
    Wire(
        "solar",
        Shape.NAME_AND_JSON,
        "<|tool_calls|><|tool_call:begin|>",
        f"call_1<|tool_call:name|>get_weather<|tool_call:args|>{_ARGUMENTS}",
        "<|tool_call:end|><|calls|>",
    ),
    Wire(
        "harmony",
        Shape.NAME_AND_JSON,
        "<|channel|>",
        f"commentary to=functions.get_weather <|constrain|>json<|message|>{_ARGUMENTS}",
        "<|call|>",
    ),
    Wire(
        "qwen3_coder",
        Shape.TAGS,
        "<tool_call>\n",
        "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>",
        "\n</tool_call>",
        "\n</parameter>",
    ),
    Wire(
        "seed_oss",
        Shape.TAGS,
        "<seed:tool_call>\n",
        "<function=get_weather>\n<parameter=city>Paris</parameter>\n</function>",
        "\n</seed:tool_call>",
        "</parameter>",
    ),
    Wire(
        "minimax_m2",
        Shape.TAGS,
        "<minimax:tool_call>\n",
        _INVOKE,
        "\n</minimax:tool_call>",
        "</parameter>",
    ),
    Wire(
        "dots",
        Shape.TAGS,
        "<dots_function_call>\n",
        _INVOKE,
        "\n</dots_function_call>",
        "</parameter>",
    ),
    Wire(
        "minicpm5",
        Shape.TAGS,
        "",
        '<function name="get_weather"><param name="city">Paris</param></function>',
        "",
        "</param>",
    ),
    Wire(
        "step3",
        Shape.TAGS,
        "<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>",
        '<steptml:invoke name="get_weather"><steptml:parameter name="city">Paris'
        "</steptml:parameter></steptml:invoke>",
        "<｜tool_call_end｜><｜tool_calls_end｜>",
        "</steptml:parameter>",
    ),
    Wire(
        "deepseek_v3_2",
        Shape.TAGS,
        "<｜DSML｜function_calls>\n",
        _DSML,
        "\n</｜DSML｜function_calls>",
        "</｜DSML｜parameter>",
    ),
    Wire(
        "deepseek_v4",
        Shape.TAGS,
        "<｜DSML｜tool_calls>\n",
        _DSML,
        "\n</｜DSML｜tool_calls>",
        "</｜DSML｜parameter>",
    ),
    Wire(
        "glm47",
        Shape.TAGS,
        "<tool_call>",
        "get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value>",
        "</tool_call>",
        "</arg_value>",
    ),
    Wire(
        "hy_v3",
        Shape.TAGS,
        "<tool_calls>\n<tool_call>",
        "get_weather<tool_sep>\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n",
        "</tool_call>\n</tool_calls>",
        "</arg_value>",
    ),
    Wire(
        "kimi_k3",
        Shape.TAGS,
        "<|open|>tools<|sep|>",
        '<|open|>call tool="get_weather" index="1"<|sep|>'
        '<|open|>argument key="city" type="string"<|sep|>Paris<|close|>argument<|sep|>'
        "<|close|>call<|sep|>",
        "<|close|>tools<|sep|>",
        "<|close|>argument<|sep|>",
    ),
    Wire(
        "muse_glimmer",
        Shape.TAGS,
        "<atem:function_calls>\n",
        '<atem:invoke name="get_weather">\n<atem:parameter name="city">Paris</atem:parameter>\n'
        "</atem:invoke>",
        "\n</atem:function_calls>",
        "</atem:parameter>",
        in_message=(" to=get_weather<|message|>", ""),
    ),
    Wire(
        "minimax_m3",
        Shape.TREE,
        f"{_M3}<tool_call>\n",
        f'{_M3}<invoke name="get_weather">{_M3}<city>Paris{_M3}</city>{_M3}</invoke>',
        f"\n{_M3}</tool_call>",
        f"{_M3}</city>",
    ),
    Wire(
        "minimax_m3_nom",
        Shape.TREE,
        "<tool_call>\n",
        '<invoke name="get_weather"><city>Paris</city></invoke>',
        "\n</tool_call>",
        "</city>",
    ),
    Wire(
        "gemma4",
        Shape.BRACED,
        "<|tool_call>",
        'call:get_weather{city:<|"|>Paris<|"|>}',
        "<tool_call|>",
        '<|"|>',
    ),
    Wire(
        "functiongemma",
        Shape.BRACED,
        "<start_function_call>",
        "call:get_weather{city:<escape>Paris<escape>}",
        "<end_function_call>",
        "<escape>",
    ),
    Wire(
        "lfm2",
        Shape.PYTHONIC,
        "<|tool_call_start|>",
        '[get_weather(city="Paris")]',
        "<|tool_call_end|>",
    ),
    Wire(
        "llama4_pythonic",
        Shape.PYTHONIC,
        "<|python_start|>",
        '[get_weather(city="Paris")]',
        "<|python_end|>",
    ),
    Wire(
        "olmo3",
        Shape.PYTHONIC,
        "<function_calls>",
        'get_weather(city="Paris")',
        "</function_calls>",
    ),
    Wire("pythonic", Shape.PYTHONIC, "", '[get_weather(city="Paris")]', ""),
]

#: Families without tool calls: their output has no call that could be malformed.
REASONING_ONLY = frozenset(family.name for family in families() if family.tools is None)
