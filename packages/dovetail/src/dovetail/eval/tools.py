"""The tools of the tasks, and the validation of calls.

A tool is a struct: its fields are the arguments, its docstring is the description that the model
gets. The same struct provides the schema and the validation, so the two cannot disagree.
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

MAX_FILE_BYTES = 256 << 10  # no task needs more
MAX_PATH_PARTS = 16  # listing and removing folders is recursive


class ToolError(Exception):
    """Raised if a tool fails. The message is the tool result for the model."""


class Workspace:
    """Files below `root`, and the records of a task's service.

    Paths are relative and contain no `..`. Only this class creates files here, and it creates no
    links, so a path that looks confined is confined.
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
        except OSError as error:
            raise ToolError(f"{path!r} cannot be read: {error.strerror}") from None

    def write(self, path: str, content: str) -> None:
        data = _encode_text(content)
        if len(data) > MAX_FILE_BYTES:
            raise ToolError(f"{len(data)} bytes are too many for a file here")
        target = self._resolve(path)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        except OSError as error:
            raise ToolError(f"{path!r} cannot be written: {error.strerror}") from None

    def list_files(self) -> list[str]:
        """Return the paths of all files."""
        found = (path for path in self.root.rglob("*") if path.is_file())
        return sorted(path.relative_to(self.root).as_posix() for path in found)

    def look_up_record(self, key: str) -> str:
        """Return a record. The simulated service is busy on the first call."""
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
        raise ToolError("the text contains an unpaired surrogate") from None


_MAX_BYTES_PER_TOKEN = 6  # on average, in text of this kind

RelativePath = Annotated[str, Meta(description="A path in the folder, such as notes/a.txt")]


class TaskTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base class of the tools."""

    def run(self, workspace: Workspace) -> str:
        """Run the tool and return its output. Raises `ToolError` with a message for the model."""
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
    """The validation of a call. `tool` is set if it passed; else `problem` is for the model."""

    name: str
    is_known_tool: bool
    is_valid_json: bool
    matches_schema: bool
    problem: str = ""
    tool: TaskTool | None = None


def check_call(
    name: str, arguments: str, tools: Mapping[str, type[TaskTool]] = TOOLS
) -> CheckedCall:
    """Validate a call. The schema is only checked for known tools."""
    tool_type = tools.get(name)
    is_known = tool_type is not None
    try:
        value = msgspec.json.decode(arguments or "{}")
    except (ValueError, RecursionError) as error:  # also for unpaired surrogates and NaN
        return CheckedCall(name, is_known, False, False, f"the arguments are not JSON: {error}")
    if tool_type is None:
        names = ", ".join(tools)
        return CheckedCall(name, False, True, False, f"there is no tool {name!r}, only {names}")
    try:
        tool = msgspec.convert(_normalize_integers(value), tool_type)
    except (msgspec.ValidationError, RecursionError) as error:
        return CheckedCall(name, True, True, False, f"the arguments do not fit the schema: {error}")
    return CheckedCall(name, True, True, True, tool=tool)


def build_tool_specs(tools: Mapping[str, type[TaskTool]] = TOOLS) -> tuple[ToolSpec, ...]:
    """Build the tools as sent to a model."""
    return tuple(
        ToolSpec(name, (tool_type.__doc__ or "").strip(), build_schema(tool_type))
        for name, tool_type in tools.items()
    )


def can_contain_tools(prompt_tokens: int) -> bool:
    """Return whether a prompt with this many tokens can contain the tools in any format."""
    schema_chars = len(json.dumps([tool.parameters for tool in build_tool_specs()]))
    return prompt_tokens * _MAX_BYTES_PER_TOKEN > schema_chars // 2


def build_schema(tool_type: type[msgspec.Struct]) -> dict[str, Any]:
    """Build the JSON Schema of a tool's arguments, with references inlined.

    Some templates ignore references.
    """
    schema = msgspec.json.schema(tool_type)
    inlined = _inline_refs(schema, schema["$defs"])
    assert isinstance(inlined, dict)
    return {key: value for key, value in inlined.items() if key != "description"}


def _inline_refs(value: object, definitions: Mapping[str, Any]) -> object:
    match value:
        case {"$ref": str(ref)}:
            return _inline_refs(definitions[ref.rpartition("/")[2]], definitions)
        case {"title": str(), "type": "object", **rest}:
            return _inline_refs({"type": "object", **rest}, definitions)
        case dict():
            return {key: _inline_refs(inner, definitions) for key, inner in value.items()}
        case list():
            return [_inline_refs(inner, definitions) for inner in value]
        case _:
            return value


def _normalize_integers(value: object) -> object:
    """Convert numbers such as 3.0 to integers: JSON Schema treats them as integers."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case dict():
            return {key: _normalize_integers(inner) for key, inner in value.items()}
        case list():
            return [_normalize_integers(inner) for inner in value]
        case _:
            return value
