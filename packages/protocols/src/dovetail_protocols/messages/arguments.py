"""The arguments of a call as this API represents them: an object, streamed or complete.

The free text of a custom tool is the member `input`. A call that the model did not finish contains
the complete members, which matches what the official clients make of the stream.
"""

import re

import msgspec

from dovetail_model import ToolCallBlock
from dovetail_protocols.json_strings import escape_json, replace_surrogates

CUSTOM_HEAD = '{"input":"'
CUSTOM_TAIL = '"}'

_TOKEN = re.compile(
    r"""\s*+(?: (?P<string>"(?:[^"\\]++|\\.)*+") | (?P<mark>[{}\[\],:])
      | (?P<word>-?[0-9][-+.0-9eE]*+ | true | false | null) )""",
    re.VERBOSE | re.DOTALL,
)
_CLOSER = {"{": "}", "[": "]"}


def input_json(call: ToolCallBlock) -> msgspec.Raw:
    """Return the input of a complete or truncated call, using the model's own JSON if valid."""
    text = replace_surrogates(call.arguments)
    if call.custom:
        text = CUSTOM_HEAD + escape_json(text) + (CUSTOM_TAIL if call.complete else "")
    return msgspec.Raw((text if _is_json(text) else _whole_members(text)).encode())


def _whole_members(text: str) -> str:
    """Return the JSON of all complete members in the text, with its containers closed."""
    stack: list[str] = []
    end, closers, is_key = 0, "", False
    at = 0
    while (token := _TOKEN.match(text, at)) is not None:
        at = token.end()
        mark, word = token["mark"], token["word"]
        if mark in (",", ":"):
            is_key = mark == "," and stack[-1:] == ["}"]
            continue
        if word and not _is_json(word):
            break
        if token["string"] and is_key:
            continue
        if mark in _CLOSER:
            stack.append(_CLOSER[mark])
        elif mark and (not stack or stack.pop() != mark):
            break
        is_key = mark == "{"
        end, closers = at, "".join(reversed(stack))
    found = text[:end] + closers
    return found if _is_json(found) else "{}"


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
    return True
