"""Arguments as a tree of tags: `<city>Paris</city><tags><item>a</item></tags>`.

Objects and arrays are spelled out in tags (an array's children are called `item`); a leaf is
raw text, typed by the schema. `token` stands before every tag, opening and closing.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dovetail_model import ToolCallBlock
from dovetail_parsers.arguments import schema as schemas
from dovetail_parsers.arguments.body import Progress, Sink
from dovetail_parsers.arguments.json_text import escape, overlap
from dovetail_parsers.arguments.notation import load, write_raw
from dovetail_parsers.arguments.value import Value

_TAG = re.compile(r"<(/?)([^<>/\s\"=]{1,200})>")
_MAY_BE_TAG = re.compile(r"<(?:/?(?:[^<>/\s\"=]{1,200})?)?\Z")
_ITEM = "item"


@dataclass(frozen=True)
class Tree:
    """`call` is the element whose closing tag ends the arguments."""

    token: str
    call: str = "invoke"
    holds_calls: bool = False
    holds_many: bool = False

    def decoder(self) -> "_TreeDecoder":
        return _TreeDecoder(self)

    def write(self, calls: Sequence[ToolCallBlock]) -> str:
        children = self._write_children(load(calls[0].arguments))
        return f"{children}{self.token}</{self.call}>"

    def _write_children(self, value: Mapping[str, Any]) -> str:
        return "".join(self._write_tag(k, v) for k, v in value.items() if v is not None)

    def _write_tag(self, name: str, value: Any) -> str:
        if isinstance(value, dict):
            body = self._write_children(value)
        elif isinstance(value, list):
            body = "".join(self._write_tag(_ITEM, item) for item in value)
        else:
            body = write_raw(value)
        return f"{self.token}<{name}>{body}{self.token}</{name}>"


class _Node:
    """An element that is open: what it may be, and what it has turned out to be."""

    __slots__ = ("brackets", "name", "schema", "types", "value")

    def __init__(self, name: str, schema: Mapping[str, Any], types: frozenset[str]) -> None:
        self.name = name
        self.schema = schema
        self.types = types
        self.brackets = ""  # "{}" or "[]" once it has a child
        self.value: Value | None = None  # once it has text

    def takes_children(self) -> bool:
        return self.value is None and bool(self.types & {"object", "array"})

    def begin_child(self, name: str) -> str:
        """What precedes a child's value."""
        first = not self.brackets
        if first:
            both = {"object", "array"} <= self.types
            is_array = "array" in self.types and (not both or name == _ITEM)
            self.brackets = "[]" if is_array else "{}"
        lead = self.brackets[0] if first else ", "
        return lead if self.brackets == "[]" else f'{lead}"{escape(name)}": '

    def end(self) -> str:
        if self.value is not None:
            return self.value.end()
        if self.brackets:
            return self.brackets[1]
        for kind, empty in (("string", '""'), ("object", "{}"), ("array", "[]"), ("null", "null")):
            if kind in self.types:
                return empty
        return '""'


class _TreeDecoder:
    __slots__ = ("_needle", "_root", "_stack", "_token", "_white")

    def __init__(self, body: Tree) -> None:
        self._token = body.token
        self._needle = body.token + "<"
        self._white = ""  # white space that is text only if text follows
        self._root: Mapping[str, Any] | None = None
        self._stack = [_Node(body.call, {}, frozenset({"object"}))]

    def feed(self, text: str, start: int, sink: Sink) -> tuple[Progress, int]:
        if self._root is None:
            self._root = sink.schema()
            self._stack[0].schema = self._root
        out: list[str] = []
        at, progress, waits = start, Progress.MORE, False
        while at < len(text) and progress is Progress.MORE and not waits:
            progress, end = self._step(text, at, out, sink)
            waits, at = end == at, end
        sink.add_arguments("".join(out), text[start:at])
        if progress is Progress.END:
            sink.close_call()
        return progress, at

    def finish(self, sink: Sink) -> bool:
        """With every element closed only the call's own closing tag is missing."""
        complete = len(self._stack) == 1
        if complete:
            sink.add_arguments(self._stack[0].end() if self._stack[0].brackets else "{}", "")
            sink.close_call()
        return complete

    def _step(self, text: str, at: int, out: list[str], sink: Sink) -> tuple[Progress, int]:
        """Reads up to a tag, or one tag; no progress means that a tag is not complete yet."""
        found = text.find(self._needle, at)
        if found < 0:
            found = len(text) - overlap(text, self._needle, at)
        if found > at:
            progress = self._text(text[at:found], out)
            return progress, found if progress is Progress.MORE else at
        tag_at = found + len(self._token)
        tag = _TAG.match(text, tag_at)
        if tag is None and (tag_at >= len(text) or _MAY_BE_TAG.match(text, tag_at)):
            return Progress.MORE, at
        if tag is None or not self._is_markup(tag):
            progress = self._text(text[at : tag_at + 1], out)
            return progress, tag_at + 1 if progress is Progress.MORE else at
        return self._tag(tag, out, sink), tag.end()

    def _is_markup(self, tag: re.Match[str]) -> bool:
        node = self._stack[-1]
        return tag[2] == node.name if tag[1] else node.takes_children()

    def _text(self, text: str, out: list[str]) -> Progress:
        node = self._stack[-1]
        if node.value is None:
            text = self._white + text
            self._white = ""
            if not text.strip() and ("string" not in node.types or len(node.types) > 1):
                self._white = text
                return Progress.MORE
            if not text:
                return Progress.MORE
            if node.brackets or len(self._stack) == 1:
                return Progress.FAIL
            node.value = Value(node.types)
        out.append(node.value.feed(text))
        return Progress.MORE

    def _tag(self, tag: re.Match[str], out: list[str], sink: Sink) -> Progress:
        node = self._stack[-1]
        if not tag[1]:
            self._white = ""
            out.append(node.begin_child(tag[2]))
            self._stack.append(self._child(node, tag[2]))
            return Progress.MORE
        if self._white and not node.brackets and "string" in node.types:
            node.value = Value(frozenset({"string"}))
            out.append(node.value.feed(self._white))
        self._white = ""
        self._stack.pop()
        out.append(node.end())
        if node.value is not None and self._check(node.value, sink) is Progress.FAIL:
            return Progress.FAIL
        if self._stack:
            return Progress.MORE
        if not node.brackets:
            out[-1] = "{}"
        return Progress.END

    def _child(self, parent: _Node, name: str) -> _Node:
        assert self._root is not None
        if parent.brackets == "[]":
            schema = schemas.item_schema(parent.schema, self._root)
        else:
            schema = schemas.property_schema(parent.schema, name, self._root)
        return _Node(name, schema, schemas.types(schema, self._root))

    def _check(self, value: Value, sink: Sink) -> Progress:
        for code in value.diagnostics:
            sink.diagnose(code)
        value.diagnostics.clear()
        return Progress.FAIL if value.failed else Progress.MORE
