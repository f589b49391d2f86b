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

from dovetail.prompt.facts import Facts
from dovetail_model import ToolCallBlock
from dovetail_parsers import write

Message = dict[str, Any]

#: The parser that reads what a model without a family is asked for.
TOOL_PARSER = "hermes"


def needs_fallback(facts: Facts) -> bool:
    """Whether this template cannot carry a tool loop by itself."""
    return not (facts.renders_tools and facts.renders_calls and facts.renders_results)


def fallback_tools(
    tools: Sequence[Mapping[str, Any]], tool_parser: str = TOOL_PARSER, results: bool = True
) -> str:
    """The text that offers tools to a model; empty if there are none.

    `results` says that results will come as text too, which the model is then told.
    """
    if not tools:
        return ""
    signatures = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    example = fallback_calls([("function_name", {"argument": "value"})], tool_parser)
    back = "\nResults come back between <tool_response></tool_response>." if results else ""
    return (
        "You may call functions to help with the user's request. Their signatures stand between "
        f"<tools></tools>:\n<tools>\n{signatures}\n</tools>\n\n"
        f"To call a function, write its name and its arguments in exactly this form:\n{example}"
        f"{back}"
    )


def fallback_calls(calls: Sequence[tuple[str, object]], tool_parser: str = TOOL_PARSER) -> str:
    """Calls as the model was asked to write them: names, and arguments or their JSON text."""
    blocks = [
        ToolCallBlock("", name, given if isinstance(given, str) else _dumped(given))
        for name, given in calls
    ]
    return write(blocks, tool_parser)


def fallback_result(text: str) -> str:
    """A tool's result as the model was told that it would come."""
    return f"<tool_response>\n{text}\n</tool_response>"


def as_plain_messages(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    facts: Facts,
    tool_parser: str | None = None,
) -> list[Message]:
    """The same conversation with all that the template cannot show written as text.

    Results of one turn stand in one message.
    """
    parser = tool_parser or TOOL_PARSER
    plain: list[Message] = []
    answering = False
    for message in messages:
        is_result = message["role"] == "tool" and not facts.renders_results
        written = _result(message) if is_result else _called(message, facts, parser)
        if is_result and answering:
            plain[-1]["content"] += "\n" + written["content"]
        else:
            plain.append(written)
        answering = is_result
    if facts.renders_tools or not tools:
        return plain
    return _offered(plain, fallback_tools(tools, parser, not facts.renders_results), facts)


def _offered(messages: list[Message], offer: str, facts: Facts) -> list[Message]:
    """The offer behind the system message, or before the user's first words."""
    role = "system" if facts.system == "kept" else "user"
    if not messages or messages[0]["role"] != role:
        return [{"role": role, "content": offer}, *messages]
    said = _text(messages[0]["content"])
    both = f"{said}\n\n{offer}" if role == "system" else f"{offer}\n\n{said}"
    return [{**messages[0], "content": both}, *messages[1:]]


def _result(message: Mapping[str, Any]) -> Message:
    return {"role": "user", "content": fallback_result(_text(message.get("content")))}


def _called(message: Mapping[str, Any], facts: Facts, tool_parser: str) -> Message:
    calls = message.get("tool_calls")
    if not calls or facts.renders_calls:
        return dict(message)
    functions = [call["function"] for call in calls]
    written = fallback_calls([(f["name"], f["arguments"]) for f in functions], tool_parser)
    text = _text(message.get("content"))
    rest = {k: v for k, v in message.items() if k != "tool_calls"}
    return {**rest, "content": f"{text}\n{written}" if text else written}


def _text(content: object) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content)
    return "" if content is None else str(content)


def _dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
