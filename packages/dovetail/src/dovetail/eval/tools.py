"""The tools that a task may use, and the judgement of a call.

A tool is a struct: its fields are the arguments, its docstring is what the model is told. The same
struct gives the schema that is sent and the check of what comes back, so the two cannot disagree.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dovetail_model import ToolSpec

MAX_FILE_BYTES = 256 << 10  # of one file: no task needs more
MAX_PATH_PARTS = 16  # of a path; what walks through a folder and takes it away does so recursively


class ToolError(Exception):
    """A tool could not do what it was asked. The model is told why, and goes on."""


class Workspace:
    """Files below `root`, and records that a task's service knows of.

    Paths are relative and have no `..` in them. Only this class makes anything here, and it makes
    no links, so a path that looks confined is.
    """

    __slots__ = ("_lookup_counts", "_records", "root")

    def __init__(self, root: Path, records: Mapping[str, str] | None = None) -> None:
        self.root = root
        self._records = records or {}
        self._lookup_counts: Counter[str] = Counter()

    def read(self, path: str) -> str:
        try:
            return self._resolve(path).read_bytes().decode()
        except FileNotFoundError:
            raise ToolError(f"there is no file {path!r}: list_files shows what there is") from None
        except OSError as fault:
            raise ToolError(f"{path!r} cannot be read: {fault.strerror}") from None

    def write(self, path: str, content: str) -> None:
        data = _encode_text(content)
        if len(data) > MAX_FILE_BYTES:
            raise ToolError(f"{len(data)} bytes are too many for a file here")
        place = self._resolve(path)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        except OSError as fault:
            raise ToolError(f"{path!r} cannot be written: {fault.strerror}") from None

    def list_files(self) -> list[str]:
        """All files, by their paths."""
        found = (path for path in self.root.rglob("*") if path.is_file())
        return sorted(path.relative_to(self.root).as_posix() for path in found)

    def look_up_record(self, key: str) -> str:
        """A record, from a service that is always busy when it is first asked."""
        if key not in self._records:
            raise ToolError(f"there is no record {key!r}")
        self._lookup_counts[key] += 1
        if self._lookup_counts[key] == 1:
            raise ToolError("the service is busy: try the same call again")
        return self._records[key]

    def _resolve(self, path: str) -> Path:
        pure = PurePosixPath(path)
        if (
            pure.is_absolute()
            or ".." in pure.parts
            or not pure.parts
            or b"\0" in _encode_text(path)
        ):
            raise ToolError(f"{path!r} is not a path inside the folder")
        if len(pure.parts) > MAX_PATH_PARTS:
            raise ToolError(f"a path of {len(pure.parts)} parts is too long")
        return self.root / pure


def _encode_text(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ToolError("half a character is no text") from None


_MAX_BYTES_PER_TOKEN = 6  # on average, in text of this kind

RelativePath = Annotated[str, Meta(description="A path in the folder, such as notes/a.txt")]


class TaskTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What every tool can do."""

    def run(self, workspace: Workspace) -> str:
        """Does it. Raises `ToolFault` with words for the model."""
        raise NotImplementedError


class ListFiles(TaskTool, frozen=True):
    """List all files of the folder, one path a line."""

    def run(self, workspace: Workspace) -> str:
        return "\n".join(workspace.list_files()) or "(no files)"


class ReadFile(TaskTool, frozen=True):
    """Read a whole text file."""

    path: RelativePath

    def run(self, workspace: Workspace) -> str:
        return workspace.read(self.path)


class WriteFile(TaskTool, frozen=True):
    """Write a text file. A file of that path is replaced, folders are made."""

    path: RelativePath
    content: Annotated[str, Meta(description="The whole text of the file")]

    def run(self, workspace: Workspace) -> str:
        workspace.write(self.path, self.content)
        return f"{self.path}: {len(self.content)} characters written"


class EditFile(TaskTool, frozen=True):
    """Replace a piece of a text file. The old text must stand in it exactly once."""

    path: RelativePath
    old_text: Annotated[str, Meta(description="The exact text to replace", min_length=1)]
    new_text: Annotated[str, Meta(description="What to put in its place")]

    def run(self, workspace: Workspace) -> str:
        text = workspace.read(self.path)
        found = text.count(self.old_text)
        if found != 1:
            raise ToolError(f"old_text stands {found} times in {self.path}; it must be once")
        workspace.write(self.path, text.replace(self.old_text, self.new_text))
        return f"{self.path}: one piece replaced"


class FindText(TaskTool, frozen=True):
    """Find the lines of all files that contain a text, as path:line: text."""

    text: Annotated[str, Meta(description="The text to look for", min_length=1)]

    def run(self, workspace: Workspace) -> str:
        found = [
            f"{path}:{number}: {line}"
            for path in workspace.list_files()
            for number, line in enumerate(workspace.read(path).splitlines(), 1)
            if self.text in line
        ]
        return "\n".join(found) or "(nothing found)"


class Calculate(TaskTool, frozen=True):
    """Add or multiply numbers."""

    operation: Annotated[Literal["add", "multiply"], Meta(extra_json_schema={"type": "string"})]
    numbers: Annotated[list[float], Meta(min_length=1)]

    def run(self, workspace: Workspace) -> str:
        total = 0.0 if self.operation == "add" else 1.0
        for number in self.numbers:
            total = total + number if self.operation == "add" else total * number
        return f"{total:.12g}"


class LookUp(TaskTool, frozen=True):
    """Look up a record of the service by its key."""

    key: Annotated[str, Meta(description="The record's key, such as part-3")]

    def run(self, workspace: Workspace) -> str:
        return workspace.look_up_record(self.key)


class OrderAddress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    street: str
    city: str
    postcode: str


class OrderCustomer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    address: OrderAddress


class OrderItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sku: str
    quantity: Annotated[int, Meta(ge=1)]
    options: list[str] = []


class PlaceOrder(TaskTool, frozen=True):
    """Place an order. It is kept as order.json."""

    customer: OrderCustomer
    items: Annotated[list[OrderItem], Meta(min_length=1)]
    shipping: Annotated[Literal["standard", "express"], Meta(extra_json_schema={"type": "string"})]
    gift: bool

    def run(self, workspace: Workspace) -> str:
        workspace.write("order.json", msgspec.json.encode(self).decode())
        return "the order is placed"


TOOLS: Mapping[str, type[TaskTool]] = {
    "list_files": ListFiles,
    "read_file": ReadFile,
    "write_file": WriteFile,
    "edit_file": EditFile,
    "find_text": FindText,
    "calculate": Calculate,
    "look_up": LookUp,
    "place_order": PlaceOrder,
}


@dataclass(frozen=True)
class CheckedCall:
    """What is right about a call. `tool` is there if all is; else `problem` is for the model."""

    name: str
    is_known_tool: bool
    is_valid_json: bool
    matches_schema: bool
    problem: str = ""
    tool: TaskTool | None = None


def check_call(name: str, arguments: str) -> CheckedCall:
    """A call as it was made. Whether it fits a schema is only asked of a tool that there is."""
    kind = TOOLS.get(name)
    known = kind is not None
    try:
        value = msgspec.json.decode(arguments or "{}")
    except (ValueError, RecursionError) as fault:  # half a character is no JSON, nor is NaN
        return CheckedCall(name, known, False, False, f"the arguments are no JSON: {fault}")
    if kind is None:
        there = ", ".join(TOOLS)
        return CheckedCall(name, False, True, False, f"there is no tool {name!r}, only {there}")
    try:
        tool = msgspec.convert(_normalize_integers(value), kind)
    except (msgspec.ValidationError, RecursionError) as fault:
        return CheckedCall(name, True, True, False, f"the arguments do not fit the schema: {fault}")
    return CheckedCall(name, True, True, True, tool=tool)


def build_tool_specs() -> tuple[ToolSpec, ...]:
    """The tools as a model is offered them."""
    return tuple(
        ToolSpec(name, (kind.__doc__ or "").strip(), build_schema(kind))
        for name, kind in TOOLS.items()
    )


def can_contain_tools(prompt_tokens: int) -> bool:
    """Whether the tools can be in a prompt of so many tokens, however tersely they are written."""
    written = len(json.dumps([tool.parameters for tool in build_tool_specs()]))
    return prompt_tokens * _MAX_BYTES_PER_TOKEN > written // 2


def build_schema(tool_type: type[msgspec.Struct]) -> dict[str, Any]:
    """A tool's arguments in JSON Schema, nothing referred to: not every template follows that."""
    whole = msgspec.json.schema(tool_type)
    found = _inline_refs(whole, whole["$defs"])
    assert isinstance(found, dict)
    return {key: value for key, value in found.items() if key != "description"}


def _inline_refs(value: object, named: Mapping[str, Any]) -> object:
    match value:
        case {"$ref": str(ref)}:
            return _inline_refs(named[ref.rpartition("/")[2]], named)
        case {"title": str(), "type": "object", **rest}:
            return _inline_refs({"type": "object", **rest}, named)
        case dict():
            return {key: _inline_refs(inner, named) for key, inner in value.items()}
        case list():
            return [_inline_refs(inner, named) for inner in value]
        case _:
            return value


def _normalize_integers(value: object) -> object:
    """Numbers such as 3.0 as integers, which they are to JSON Schema."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case dict():
            return {key: _normalize_integers(inner) for key, inner in value.items()}
        case list():
            return [_normalize_integers(inner) for inner in value]
        case _:
            return value
