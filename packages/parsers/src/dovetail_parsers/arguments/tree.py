"""Arguments as a tree of tags: `<city>Paris</city><tags><item>a</item></tags>`.

Objects and arrays are written as tags (an array's children are named `item`); a leaf is raw text,
typed by the schema. `token` precedes every tag, opening and closing.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dovetail_model import ToolCallBlock
from dovetail_parsers.arguments import schema as schemas
from dovetail_parsers.arguments.body import CallSink, Progress
from dovetail_parsers.arguments.json_validator import QUOTES, escape_json, overlap_length
from dovetail_parsers.arguments.notation import load_arguments, write_raw
from dovetail_parsers.arguments.value import MAX_HELD_CHARS, RawValueDecoder

_TAG = re.compile(r"<(/?)([^<>/\s\"=]{1,200})>")
_MAY_BE_TAG = re.compile(r"<(?:/?(?:[^<>/\s\"=]{1,200})?)?\Z")
_SPACE = re.compile(r"\s*")
_ITEM = "item"
_LOOK_AHEAD_CHARS = 256  # white space between a value's closer and the tag that must follow it


@dataclass(frozen=True)
class TagTree:
    """`call` is the element whose closing tag ends the arguments, `section` its parent."""

    token: str
    call: str
    section: str
    holds_calls: bool = False
    holds_many: bool = False

    def decoder(self) -> "TreeDecoder":
        return TreeDecoder(self)

    def write(self, calls: Sequence[ToolCallBlock]) -> str:
        children = self._write_children(load_arguments(calls[0].arguments))
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
    """An open element: its possible types, and its actual form."""

    __slots__ = ("brackets", "name", "schema", "types", "value")

    def __init__(self, name: str, schema: Mapping[str, Any], types: frozenset[str]) -> None:
        self.name = name
        self.schema = schema
        self.types = types
        self.brackets = ""  # "{}" or "[]" once it has a child
        self.value: RawValueDecoder | None = None  # once it has text

    def takes_children(self) -> bool:
        return self.value is None and bool(self.types & {"object", "array"})

    def begin_child(self, name: str) -> str:
        """Return the JSON that precedes a child's value."""
        first = not self.brackets
        if first:
            both = {"object", "array"} <= self.types
            is_array = "array" in self.types and (not both or name == _ITEM)
            self.brackets = "[]" if is_array else "{}"
        lead = self.brackets[0] if first else ", "
        return lead if self.brackets == "[]" else f'{lead}"{escape_json(name)}": '

    def end(self) -> str:
        if self.value is not None:
            return self.value.end()
        if self.brackets:
            return self.brackets[1]
        for kind, empty in (("string", '""'), ("object", "{}"), ("array", "[]"), ("null", "null")):
            if kind in self.types:
                return empty
        return '""'


class TreeDecoder:
    """Decodes one tree of tags."""

    __slots__ = (
        "_awaits_end",
        "_ends",
        "_needle",
        "_root",
        "_section",
        "_stack",
        "_token",
        "_whitespace",
        "verbatim",
    )

    def __init__(self, body: TagTree) -> None:
        self._token = body.token
        self._needle = body.token + "<"
        self._ends = (f"{body.token}</{body.call}>", f"{body.token}</{body.section}>")
        self._section = body.section
        self._whitespace: list[str] = []  # white space that is text only if text follows
        self._root: Mapping[str, Any] | None = None
        self._stack = [_Node(body.call, {}, frozenset({"object"}))]
        self._awaits_end = False  # text is held, see `_has_ended`
        self.verbatim = None  # leaves are raw text

    def feed(self, text: str, start: int, sink: CallSink) -> tuple[Progress, int]:
        return self._read(text, start, sink, final=False)

    def feed_last(self, text: str, start: int, sink: CallSink) -> tuple[Progress, int]:
        """Feed what was held until the end of the output, because text follows closers."""
        return self._read(text, start, sink, final=self._awaits_end)

    def open_brackets(self) -> str:
        return ""  # its tags end it

    def finish(self, rest: str, sink: CallSink) -> bool:
        """If all other elements are closed, the call's own closing tag may be missing."""
        read = self._read(rest, 0, sink, final=True)[1]
        sink.skip(rest[read:])
        if not self._stack:
            return True
        half = rest[read:].lstrip()
        complete = len(self._stack) == 1 and (not half or self._is_partial_end(half))
        if complete:
            sink.add_arguments("}" if self._stack[0].brackets else "{}", "")
            sink.close_call()
        return complete

    def _is_partial_end(self, text: str) -> bool:
        closing = len(self._token) + 1 < len(text)
        return closing and any(end.startswith(text) for end in self._ends)

    def _read(self, text: str, start: int, sink: CallSink, final: bool) -> tuple[Progress, int]:
        if self._root is None:
            self._root = sink.schema()
            self._stack[0].schema = self._root
        out: list[str] = []
        at, progress, waits = start, Progress.MORE, False
        while at < len(text) and progress is Progress.MORE and not waits:
            progress, end = self._step(text, at, out, sink, final)
            waits, at = end == at, end
        sink.add_arguments("".join(out), text[start:at])
        if progress is Progress.END:
            sink.close_call()
        return progress, at

    def _step(
        self, text: str, at: int, out: list[str], sink: CallSink, final: bool
    ) -> tuple[Progress, int]:
        """Read up to a tag, or one tag; no progress means that a tag is incomplete."""
        found = text.find(self._needle, at)
        if found < 0:
            found = len(text) - overlap_length(text, self._needle, at)
        if found > at:
            progress = self._text(text[at:found], out)
            return progress, found if progress is Progress.MORE else at
        tag_at = found + len(self._token)
        tag = _TAG.match(text, tag_at)
        if tag is None and (tag_at >= len(text) or _MAY_BE_TAG.match(text, tag_at)):
            return Progress.MORE, at
        if tag is not None and len(self._stack) == 1 and tag[0] == f"</{self._section}>":
            sink.diagnose("missing_end")
            out.append("}" if self._stack[0].brackets else "{}")
            return Progress.END, at
        if tag is not None and (self._is_markup(tag) or self._may_end_several(tag)):
            closes = self._closes(text, tag, final)
            if closes is None:
                return Progress.MORE, at
            if closes:
                if not self._is_markup(tag) and not self._end_inner(tag[2], out, sink):
                    return Progress.FAIL, at
                return self._tag(tag, out, sink), tag.end()
        progress = self._text(text[at : tag_at + 1], out)
        return progress, tag_at + 1 if progress is Progress.MORE else at

    def _closes(self, text: str, tag: re.Match[str], final: bool) -> bool | None:
        """Whether a value's closer counts: another tag must follow. None: wait for more."""
        if not tag[1] or len(self._stack) == 1:
            return True
        if tag[2] != self._stack[-1].name:
            return self._closes_all(text, tag, final)
        end = _SPACE.match(text, tag.end()).end()  # type: ignore[union-attr]
        following = text[end : end + len(self._needle)]
        if following == self._needle:
            return True
        if end - tag.end() > _LOOK_AHEAD_CHARS or not self._needle.startswith(following):
            return False
        return True if final else None

    def _may_end_several(self, tag: re.Match[str]) -> bool:
        """Whether the tag closes an element that contains the open one, whose closer is missing."""
        return bool(tag[1]) and any(node.name == tag[2] for node in self._stack[:-1])

    def _closes_all(self, text: str, tag: re.Match[str], final: bool) -> bool | None:
        """Whether the closers of all outer elements follow the tag, and the section's after them.

        None: wait for more.
        """
        names = [node.name for node in self._stack]
        outer = reversed(names[: names.index(tag[2])])
        expected = [f"{self._token}</{name}>" for name in outer]
        end = tag.end()
        for closer in (*expected, self._ends[1]):
            at = _SPACE.match(text, end).end()  # type: ignore[union-attr]
            if at - end > _LOOK_AHEAD_CHARS:
                return False
            if not text.startswith(closer, at):
                partial = closer.startswith(text[at:])
                return (True if final else None) if partial else False
            end = at + len(closer)
        return self._may_follow(text, end, final)

    def _may_follow(self, text: str, end: int, final: bool) -> bool | None:
        """Whether the section's closer may end here: text or a new call follows."""
        at = _SPACE.match(text, end).end()  # type: ignore[union-attr]
        if at == len(text):
            return True if final else None
        if text[end] in QUOTES:
            return False
        openers = (f"{self._token}<{self._section}>", f"{self._token}<{self._stack[0].name} ")
        if not text.startswith("<", at) and not text.startswith(self._needle, at):
            ended = self._has_ended(text, end, final)
            self._awaits_end = ended is None
            return ended
        if text.startswith(openers, at):
            return True
        partial = any(opener.startswith(text[at:]) for opener in openers)
        return (True if final else None) if partial else False

    def _has_ended(self, text: str, start: int, final: bool) -> bool | None:
        """Whether the closers before `start`, which text follows, are not data of the value.

        They are data if the value's own closer follows outside of calls in the text, and if this is
        not known within a limit. None: wait for more.
        """
        own, stop = f"{self._token}</{self._stack[-1].name}>", start + MAX_HELD_CHARS
        call = self._stack[0].name
        at = text.find(own, start, stop)
        while at >= 0:
            opened = text.count(f"{self._token}<{call} ", start, at)
            if opened <= text.count(f"{self._token}</{call}>", start, at):
                end = _SPACE.match(text, at + len(own)).end()  # type: ignore[union-attr]
                following = text[end : end + len(self._needle)]
                if following == self._needle or (final and end == len(text)):
                    return False
                if self._needle.startswith(following) and not final:
                    return None
            at = text.find(own, at + 1, stop)
        if len(text) >= stop:
            return False
        return True if final else None

    def _end_inner(self, name: str, out: list[str], sink: CallSink) -> bool:
        """End the open elements inside the one of this name. Return whether all are valid."""
        sink.diagnose("missing_value_end")
        self._whitespace.clear()
        valid = True
        while self._stack[-1].name != name:
            node = self._stack.pop()
            out.append(node.end())
            valid &= self._check(node.value, sink) is Progress.MORE
        return valid

    def _is_markup(self, tag: re.Match[str]) -> bool:
        node = self._stack[-1]
        return tag[2] == node.name if tag[1] else node.takes_children()

    def _text(self, text: str, out: list[str]) -> Progress:
        node = self._stack[-1]
        if node.value is None:
            if text.isspace() and node.types != schemas.STRING:
                self._whitespace.append(text)
                return Progress.MORE
            if node.brackets or len(self._stack) == 1:
                return Progress.FAIL
            node.value = RawValueDecoder(node.types)
            text = "".join(self._whitespace) + text
            self._whitespace.clear()
        out.append(node.value.feed(text))
        return Progress.MORE

    def _tag(self, tag: re.Match[str], out: list[str], sink: CallSink) -> Progress:
        node = self._stack[-1]
        if not tag[1]:
            self._whitespace.clear()
            out.append(node.begin_child(tag[2]))
            self._stack.append(self._child(node, tag[2]))
            return Progress.MORE
        self._stack.pop()
        if self._whitespace and not node.brackets and "string" in node.types:
            node.value = RawValueDecoder(schemas.STRING)
            out.append(node.value.feed("".join(self._whitespace)))
        self._whitespace.clear()
        if not self._stack:
            out.append("}" if node.brackets else "{}")
            return Progress.END
        out.append(node.end())
        return self._check(node.value, sink)

    def _child(self, parent: _Node, name: str) -> _Node:
        assert self._root is not None
        if parent.brackets == "[]":
            schema = schemas.item_schema(parent.schema, self._root)
        else:
            schema = schemas.property_schema(parent.schema, name, self._root)
        return _Node(name, schema, schemas.allowed_types(schema, self._root))

    def _check(self, value: RawValueDecoder | None, sink: CallSink) -> Progress:
        if value is None:
            return Progress.MORE
        for code in value.diagnostics:
            sink.diagnose(code)
        value.diagnostics.clear()
        return Progress.FAIL if value.failed else Progress.MORE
