"""Tools for templates that have no place for them, or for calls, or for results.

Tools are then described in the system message:

    <tools>
    {"type": "function", "function": {"name": ..., "description": ..., "parameters": ...}}
    </tools>

Calls are asked for and shown as the model's family writes them; a model without a family is asked
for the Hermes form, `<tool_call>{"name": ..., "arguments": ...}</tool_call>`, which the parser
`hermes` reads back. Results come as a user's words between `<tool_response></tool_response>`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.prompt.template import TemplateProfile
from dovetail_model import ToolCallBlock
from dovetail_parsers import write_message

PlainMessage = dict[str, Any]

#: The parser that reads what a model without a family is asked for.
FALLBACK_TOOL_PARSER = "hermes"


def needs_fallback(profile: TemplateProfile) -> bool:
    """Whether this template cannot carry a tool loop by itself."""
    return not (profile.renders_tools and profile.renders_calls and profile.renders_results)


def format_fallback_tools(
    tools: Sequence[Mapping[str, Any]],
    tool_parser: str = FALLBACK_TOOL_PARSER,
    results: bool = True,
) -> str:
    """The text that offers tools to a model; empty if there are none.

    `results` says that results will come as text too, which the model is then told.
    """
    if not tools:
        return ""
    signatures = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    example = format_fallback_calls([("function_name", {"argument": "value"})], tool_parser)
    back = "\nResults come back between <tool_response></tool_response>." if results else ""
    return (
        "You may call functions to help with the user's request. Their signatures stand between "
        f"<tools></tools>:\n<tools>\n{signatures}\n</tools>\n\n"
        f"To call a function, write its name and its arguments in exactly this form:\n{example}"
        f"{back}"
    )


def format_fallback_calls(
    calls: Sequence[tuple[str, object]], tool_parser: str = FALLBACK_TOOL_PARSER
) -> str:
    """Calls as the model was asked to write them: names, and arguments or their JSON text."""
    blocks = [
        ToolCallBlock("", name, given if isinstance(given, str) else _dump_json(given))
        for name, given in calls
    ]
    return write_message(blocks, tool_parser)


def format_fallback_result(text: str) -> str:
    """A tool's result as the model was told that it would come."""
    return f"<tool_response>\n{text}\n</tool_response>"


def to_plain_messages(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    profile: TemplateProfile,
    tool_parser: str | None = None,
) -> list[PlainMessage]:
    """The same conversation with all that the template cannot show written as text.

    Results of one turn stand in one message.
    """
    parser = tool_parser or FALLBACK_TOOL_PARSER
    plain: list[PlainMessage] = []
    answering = False
    for message in messages:
        is_result = message["role"] == "tool" and not profile.renders_results
        written = _result_message(message) if is_result else _call_message(message, profile, parser)
        if is_result and answering:
            plain[-1]["content"] += "\n" + written["content"]
        else:
            plain.append(written)
        answering = is_result
    if profile.renders_tools or not tools:
        return plain
    return _add_tool_text(
        plain, format_fallback_tools(tools, parser, not profile.renders_results), profile
    )


def _add_tool_text(
    messages: list[PlainMessage], tool_text: str, profile: TemplateProfile
) -> list[PlainMessage]:
    """The offer behind the system message, or before the user's first words."""
    role = "system" if profile.system == "kept" else "user"
    if not messages or messages[0]["role"] != role:
        return [{"role": role, "content": tool_text}, *messages]
    said = _content_text(messages[0]["content"])
    both = f"{said}\n\n{tool_text}" if role == "system" else f"{tool_text}\n\n{said}"
    return [{**messages[0], "content": both}, *messages[1:]]


def _result_message(message: Mapping[str, Any]) -> PlainMessage:
    return {
        "role": "user",
        "content": format_fallback_result(_content_text(message.get("content"))),
    }


def _call_message(
    message: Mapping[str, Any], profile: TemplateProfile, tool_parser: str
) -> PlainMessage:
    calls = message.get("tool_calls")
    if not calls or profile.renders_calls:
        return dict(message)
    functions = [call["function"] for call in calls]
    written = format_fallback_calls([(f["name"], f["arguments"]) for f in functions], tool_parser)
    text = _content_text(message.get("content"))
    rest = {k: v for k, v in message.items() if k != "tool_calls"}
    return {**rest, "content": f"{text}\n{written}" if text else written}


def _content_text(content: object) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content)
    return "" if content is None else str(content)


def _dump_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
