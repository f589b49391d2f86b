"""The tools that a task may use, and the judgement of a call.

A tool is a struct: its fields are the arguments, its docstring is what the model is told. The same
struct gives the schema that is sent and the check of what comes back, so the two cannot disagree.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dovetail.eval.folder import Folder, ToolFault
from dovetail_model import ToolSpec

_MOST_BYTES_OF_A_TOKEN = 6  # on average, in text of this kind

RelativePath = Annotated[str, Meta(description="A path in the folder, such as notes/a.txt")]


class Tool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What every tool can do."""

    def run(self, folder: Folder) -> str:
        """Does it. Raises `ToolFault` with words for the model."""
        raise NotImplementedError


class ListFiles(Tool, frozen=True):
    """List all files of the folder, one path a line."""

    def run(self, folder: Folder) -> str:
        return "\n".join(folder.files()) or "(no files)"


class ReadFile(Tool, frozen=True):
    """Read a whole text file."""

    path: RelativePath

    def run(self, folder: Folder) -> str:
        return folder.read(self.path)


class WriteFile(Tool, frozen=True):
    """Write a text file. A file of that path is replaced, folders are made."""

    path: RelativePath
    content: Annotated[str, Meta(description="The whole text of the file")]

    def run(self, folder: Folder) -> str:
        folder.write(self.path, self.content)
        return f"{self.path}: {len(self.content)} characters written"


class EditFile(Tool, frozen=True):
    """Replace a piece of a text file. The old text must stand in it exactly once."""

    path: RelativePath
    old_text: Annotated[str, Meta(description="The exact text to replace", min_length=1)]
    new_text: Annotated[str, Meta(description="What to put in its place")]

    def run(self, folder: Folder) -> str:
        text = folder.read(self.path)
        found = text.count(self.old_text)
        if found != 1:
            raise ToolFault(f"old_text stands {found} times in {self.path}; it must be once")
        folder.write(self.path, text.replace(self.old_text, self.new_text))
        return f"{self.path}: one piece replaced"


class FindText(Tool, frozen=True):
    """Find the lines of all files that contain a text, as path:line: text."""

    text: Annotated[str, Meta(description="The text to look for", min_length=1)]

    def run(self, folder: Folder) -> str:
        found = [
            f"{path}:{number}: {line}"
            for path in folder.files()
            for number, line in enumerate(folder.read(path).splitlines(), 1)
            if self.text in line
        ]
        return "\n".join(found) or "(nothing found)"


class Calculate(Tool, frozen=True):
    """Add or multiply numbers."""

    operation: Annotated[Literal["add", "multiply"], Meta(extra_json_schema={"type": "string"})]
    numbers: Annotated[list[float], Meta(min_length=1)]

    def run(self, folder: Folder) -> str:
        total = 0.0 if self.operation == "add" else 1.0
        for number in self.numbers:
            total = total + number if self.operation == "add" else total * number
        return f"{total:.12g}"


class LookUp(Tool, frozen=True):
    """Look up a record of the service by its key."""

    key: Annotated[str, Meta(description="The record's key, such as part-3")]

    def run(self, folder: Folder) -> str:
        return folder.record(self.key)


class Address(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    street: str
    city: str
    postcode: str


class Customer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    address: Address


class Item(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sku: str
    quantity: Annotated[int, Meta(ge=1)]
    options: list[str] = []


class PlaceOrder(Tool, frozen=True):
    """Place an order. It is kept as order.json."""

    customer: Customer
    items: Annotated[list[Item], Meta(min_length=1)]
    shipping: Annotated[Literal["standard", "express"], Meta(extra_json_schema={"type": "string"})]
    gift: bool

    def run(self, folder: Folder) -> str:
        folder.write("order.json", msgspec.json.encode(self).decode())
        return "the order is placed"


TOOLS: Mapping[str, type[Tool]] = {
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
class Judged:
    """What is right about a call. `tool` is there if all is; else `problem` is for the model."""

    name: str
    known: bool
    is_json: bool
    fits: bool
    problem: str = ""
    tool: Tool | None = None


def judge(name: str, arguments: str) -> Judged:
    """A call as it was made. Whether it fits a schema is only asked of a tool that there is."""
    kind = TOOLS.get(name)
    known = kind is not None
    try:
        value = msgspec.json.decode(arguments or "{}")
    except (ValueError, RecursionError) as fault:  # half a character is no JSON, nor is NaN
        return Judged(name, known, False, False, f"the arguments are no JSON: {fault}")
    if kind is None:
        there = ", ".join(TOOLS)
        return Judged(name, False, True, False, f"there is no tool {name!r}, only {there}")
    try:
        tool = msgspec.convert(_whole(value), kind)
    except (msgspec.ValidationError, RecursionError) as fault:
        return Judged(name, True, True, False, f"the arguments do not fit the schema: {fault}")
    return Judged(name, True, True, True, tool=tool)


def specs() -> tuple[ToolSpec, ...]:
    """The tools as a model is offered them."""
    return tuple(
        ToolSpec(name, (kind.__doc__ or "").strip(), schema(kind)) for name, kind in TOOLS.items()
    )


def shown_in(prompt_tokens: int) -> bool:
    """Whether the tools can be in a prompt of so many tokens, however tersely they are written."""
    written = len(json.dumps([tool.parameters for tool in specs()]))
    return prompt_tokens * _MOST_BYTES_OF_A_TOKEN > written // 2


def schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """A tool's arguments in JSON Schema, nothing referred to: not every template follows that."""
    whole = msgspec.json.schema(kind)
    found = _plain(whole, whole["$defs"])
    assert isinstance(found, dict)
    return {key: value for key, value in found.items() if key != "description"}


def _plain(value: object, named: Mapping[str, Any]) -> object:
    match value:
        case {"$ref": str(ref)}:
            return _plain(named[ref.rpartition("/")[2]], named)
        case {"title": str(), "type": "object", **rest}:
            return _plain({"type": "object", **rest}, named)
        case dict():
            return {key: _plain(inner, named) for key, inner in value.items()}
        case list():
            return [_plain(inner, named) for inner in value]
        case _:
            return value


def _whole(value: object) -> object:
    """Numbers such as 3.0 as integers, which they are to JSON Schema."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case dict():
            return {key: _whole(inner) for key, inner in value.items()}
        case list():
            return [_whole(inner) for inner in value]
        case _:
            return value
