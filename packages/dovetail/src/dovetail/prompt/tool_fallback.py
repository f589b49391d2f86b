"""Describe tools, calls and results as text for templates that do not render them.

The system message then describes the tools:

    <tools>
    {"type": "function", "function": {"name": ..., "description": ..., "parameters": ...}}
    </tools>

Calls use the notation of the model's family. A model without a family is instructed to use the
Hermes form, `<tool_call>{"name": ..., "arguments": ...}</tool_call>`, which the parser `hermes`
parses. Results are user text between `<tool_response></tool_response>`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.prompt.template import TemplateProfile
from dovetail_model import ToolCallBlock
from dovetail_parsers import write_message

PlainMessage = dict[str, Any]

#: The parser for models without a family.
FALLBACK_TOOL_PARSER = "hermes"


def needs_fallback(profile: TemplateProfile) -> bool:
    """Return whether this template cannot render a complete tool loop."""
    return not (profile.renders_tools and profile.renders_calls and profile.renders_results)


def format_fallback_tools(
    tools: Sequence[Mapping[str, Any]],
    tool_parser: str = FALLBACK_TOOL_PARSER,
    results: bool = True,
) -> str:
    """Describe tools to a model. Returns an empty string if there are none.

    `results`: results are also sent as text, so describe their form too.
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
    """Format calls, given as names and arguments, in the notation that the model must use."""
    blocks = [
        ToolCallBlock("", name, given if isinstance(given, str) else _dump_json(given))
        for name, given in calls
    ]
    return write_message(blocks, tool_parser)


def format_fallback_result(text: str) -> str:
    """Format a tool result as described to the model."""
    return f"<tool_response>\n{text}\n</tool_response>"


def to_plain_messages(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    profile: TemplateProfile,
    tool_parser: str | None = None,
) -> list[PlainMessage]:
    """Rewrite a conversation: everything that the template cannot render becomes text.

    The results of one turn become one message.
    """
    parser = tool_parser or FALLBACK_TOOL_PARSER
    plain: list[PlainMessage] = []
    after_result = False
    for message in messages:
        is_result = message["role"] == "tool" and not profile.renders_results
        written = _result_message(message) if is_result else _call_message(message, profile, parser)
        if is_result and after_result:
            plain[-1]["content"] += "\n" + written["content"]
        else:
            plain.append(written)
        after_result = is_result
    if profile.renders_tools or not tools:
        return plain
    return _add_tool_text(
        plain, format_fallback_tools(tools, parser, not profile.renders_results), profile
    )


def _add_tool_text(
    messages: list[PlainMessage], tool_text: str, profile: TemplateProfile
) -> list[PlainMessage]:
    """Append the tool description to the system message, or put it before the first user text."""
    role = "system" if profile.system == "kept" else "user"
    if not messages or messages[0]["role"] != role:
        return [{"role": role, "content": tool_text}, *messages]
    text = _content_text(messages[0]["content"])
    both = f"{text}\n\n{tool_text}" if role == "system" else f"{tool_text}\n\n{text}"
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
