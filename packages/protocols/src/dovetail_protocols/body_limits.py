"""Limits on the content of a request, checked before and after its body is decoded.

Decoding creates an object per JSON value, so a body of a few megabytes can cost seconds and
gigabytes. `check_body` therefore counts the values of a large body without creating objects. It
never runs for long without giving other threads a chance to run, unlike a JSON decoder.
"""

import re
from collections.abc import Iterator

import msgspec

from dovetail_model import (
    Block,
    InvalidRequest,
    Request,
    ToolCallBlock,
    ToolReferenceBlock,
    ToolResultBlock,
    ToolSpec,
)

# Some clients put signatures into the ids of calls.
MAX_NAME_CHARS = 1 << 16  # of one name or id of a call
MAX_ALL_NAMES_CHARS = 1 << 22
_WINDOW_BYTES = 1 << 16  # searched at a time: other threads can run between two searches
_TOKEN = re.compile(rb'"[^"\\]{0,64}"|["\[\]{},]')
_STRING_PART = re.compile(rb"(?:[^\"\\]++|\\.)*+", re.S)
_HISTORY_FIELDS = frozenset({"messages", "input", "items"})
_LARGE_FIELDS = frozenset(
    {"messages", "input", "items", "tools", "system", "instructions", "prompt", "tokens"}
)
_QUOTE, _COMMA, _OPEN_ARRAY = ord('"'), ord(","), ord("[")
_OPENERS, _CLOSERS = b"[{", b"]}"


class RequestLimits(msgspec.Struct, frozen=True):
    """Limits on the content of one request.

    max_tools: Tools.
    max_tool_bytes: JSON of one tool, in bytes.
    max_messages: Messages, or input items.
    max_blocks: Content blocks of all messages together.
    max_values: JSON values of the body.
    max_item_values: JSON values of one message, one tool, or any other field that is not a list.
    max_other_field_bytes: JSON of a field that contains neither messages, tools nor a prompt.
    """

    max_tools: int = 2048
    max_tool_bytes: int = 1 << 20
    max_messages: int = 20_000
    max_blocks: int = 100_000
    max_values: int = 1_000_000
    max_item_values: int = 100_000
    max_other_field_bytes: int = 1 << 20


DEFAULT_LIMITS = RequestLimits()


def count_values_up_to(body: bytes) -> int:
    """Return an upper bound of the number of JSON values: text may contain commas, too."""
    total = 1
    for start in range(0, len(body), _WINDOW_BYTES):
        window = body[start : start + _WINDOW_BYTES]
        total += window.count(b",") + window.count(b"[") + window.count(b"{")
    return total


def check_body(body: bytes, limits: RequestLimits = DEFAULT_LIMITS) -> None:
    """Raise `InvalidRequest` if a body exceeds a limit. The decoder reports malformed JSON."""
    _BodyScan(body, limits).run()


def check_request(
    request: Request, limits: RequestLimits, history_field: str, *, body_bytes: int | None = None
) -> None:
    """Raise `InvalidRequest` if a decoded request exceeds a limit.

    `body_bytes` is the size of the body, if it is known: tools of a small one are not measured.
    """
    _check("tools", len(request.tools), limits.max_tools, "tools")
    _check(history_field, len(request.turns), limits.max_messages, "items")
    blocks = sum(_count_blocks(turn.blocks) for turn in request.turns)
    _check(history_field, blocks, limits.max_blocks, "content blocks")
    definitions = _check_names(request, history_field)
    if definitions:
        _check(history_field, len(request.tools) + len(definitions), limits.max_tools, "tools")
    if body_bytes is None or body_bytes > limits.max_tool_bytes:
        declared = [(f"tools[{at}]", tool) for at, tool in enumerate(request.tools)]
        for path, tool in declared + definitions:
            _check(path, _tool_bytes(tool), limits.max_tool_bytes, "bytes")


def _check_names(request: Request, history_field: str) -> list[tuple[str, ToolSpec]]:
    """Limit names and ids: unlike texts, they are compared and hashed on the event loop.

    Returns the tools that messages define, with their paths: one loop over all blocks is enough.
    """
    total = 0
    definitions: list[tuple[str, ToolSpec]] = []
    for at, turn in enumerate(request.turns):
        for block in turn.blocks:
            if isinstance(block, ToolCallBlock):
                longest = max(len(block.id), len(block.name))
                total += len(block.id) + len(block.name)
            elif isinstance(block, ToolResultBlock):
                longest = len(block.call_id)
                total += longest
            else:
                if isinstance(block, ToolReferenceBlock) and block.definition is not None:
                    definitions.append((f"{history_field}[{at}]", block.definition))
                continue
            if longest > MAX_NAME_CHARS:
                unit = "characters in the name and in the id of a call"
                _check(f"{history_field}[{at}]", longest, MAX_NAME_CHARS, unit)
    unit = "characters in the names and ids of all calls"
    _check(history_field, total, MAX_ALL_NAMES_CHARS, unit)
    return definitions


def _tool_bytes(tool: ToolSpec) -> int:
    """Return the size of the tool's JSON without white space and field names."""
    parts = (tool.name, tool.description, tool.parameters, tool.grammar)
    return len(msgspec.json.encode(parts))


def _count_blocks(blocks: tuple[Block, ...]) -> int:
    inner = (len(block.blocks) for block in blocks if isinstance(block, ToolResultBlock))
    return len(blocks) + sum(inner)


def _check(path: str, count: int, limit: int, unit: str) -> None:
    if count > limit:
        raise InvalidRequest(f"{path}: must have at most {limit} {unit}, got {count}", param=path)


class _BodyScan:
    """One pass over the structure of a body.

    `field` is the current top-level field, which starts at `field_start`. If it is a list, `items`
    is the number of complete items. The current item, or the field if it is not a list, starts at
    `start` and has `item_values` values so far.
    """

    __slots__ = (
        "body",
        "depth",
        "expects_name",
        "field",
        "field_start",
        "is_list",
        "item_values",
        "items",
        "limits",
        "start",
        "values",
    )

    def __init__(self, body: bytes, limits: RequestLimits) -> None:
        self.body = body
        self.limits = limits
        self.depth = 0
        self.values = 0
        self.field = ""
        self.expects_name = False
        self._start_field("", 0)

    def run(self) -> None:
        for start, end in _iter_tokens(self.body):
            kind = self.body[start]
            if kind == _QUOTE:
                if self.expects_name:
                    self._start_field(_read_name(self.body[start:end]), end)
            elif kind == _COMMA:
                self._separate(start)
                self._count_value()
            elif kind in _OPENERS:
                self._open(kind, start)
            else:
                self._close(start)

    def _start_field(self, name: str, at: int) -> None:
        self.field, self.field_start, self.start, self.expects_name = name, at, at, False
        self.is_list, self.items, self.item_values = False, 0, 0

    def _open(self, kind: int, at: int) -> None:
        self.depth += 1
        self._count_value()
        if self.depth == 1:
            self.expects_name = True
        elif self.depth == 2 and kind == _OPEN_ARRAY:
            self.is_list, self.start, self.item_values = True, at, 0

    def _close(self, at: int) -> None:
        if self.depth == 2 and self.is_list:
            self._end_part(at)
            self.is_list, self.start = False, self.field_start
        elif self.depth == 1:
            self._end_part(at)
        self.depth -= 1

    def _separate(self, at: int) -> None:
        if self.depth == 1:
            self._end_part(at)
            self.expects_name = True
        elif self.depth == 2 and self.is_list:
            self._end_part(at)
            self.items += 1
            self.start, self.item_values = at, 0
            self._check_items()

    def _count_value(self) -> None:
        self.values += 1
        self.item_values += 1
        if self.values > self.limits.max_values:
            limit = self.limits.max_values
            raise InvalidRequest(f"The request body must have at most {limit} JSON values.")
        if self.item_values > self.limits.max_item_values:
            _check(self._path(), self.item_values, self.limits.max_item_values, "JSON values")

    def _end_part(self, at: int) -> None:
        """Check the size of a field or an item, which ends here."""
        size = at - self.start
        if self.field == "tools" and self.is_list:
            _check(self._path(), size, self.limits.max_tool_bytes, "bytes")
        elif self.field not in _LARGE_FIELDS:
            size = at - self.field_start
            _check(self.field[:64], size, self.limits.max_other_field_bytes, "bytes")

    def _check_items(self) -> None:
        if self.field == "tools":
            _check("tools", self.items + 1, self.limits.max_tools, "tools")
        elif self.field in _HISTORY_FIELDS:
            _check(self.field, self.items + 1, self.limits.max_messages, "items")

    def _path(self) -> str:
        name = self.field[:64]
        return f"{name}[{self.items}]" if self.is_list else name


def _iter_tokens(body: bytes) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of each string, comma and bracket outside of strings."""
    at, size, search = 0, len(body), _TOKEN.search
    while at < size:
        found = search(body, at, at + _WINDOW_BYTES)
        if found is None:
            at += _WINDOW_BYTES
            continue
        start, at = found.span()
        if body[start] == _QUOTE and at == start + 1:
            at = _string_end(body, at)
        yield start, at


def _string_end(body: bytes, at: int) -> int:
    """Return the position after a string whose content starts here."""
    while at < len(body):
        end = at + _WINDOW_BYTES
        quote = body.find(b'"', at, end)
        plain_end = min(end, len(body)) if quote < 0 else quote
        if body.find(b"\\", at, plain_end) < 0:
            at = plain_end
        else:
            part = _STRING_PART.match(body, at, end)
            if part is None or part.end() == at:
                return len(body)  # truncated
            at = part.end()
        if body.startswith(b'"', at):
            return at + 1
    return at


def _read_name(token: bytes) -> str:
    try:
        return str(msgspec.json.decode(token))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
