"""Tools that a type defines instead of a schema: server tools, and tools that the client runs.

Anthropic's models are trained on the types that a client runs: `bash`, `text_editor` and `memory`.
Other models need a schema, so they are shown as ordinary functions with one written here.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from dovetail_model import ServerTool, ServerToolKind, ToolSpec
from dovetail_protocols.messages import wire
from dovetail_protocols.request_body import convert

_SERVER_KIND = re.compile(r"(web_search|web_fetch)_\d{8}")
_CLIENT_TYPE = re.compile(r"(bash|text_editor|memory)_(\d{8})")
_LAST_UNDO_DATE = "20250124"  # newer text editors have no `undo_edit`

_USED_FIELDS = frozenset((*wire.ServerToolIn.__struct_fields__, "cache_control"))


class ClientTool(msgspec.Struct, frozen=True):
    """A tool that the client runs: its usual name, and its definition for the model."""

    name: str
    description: str
    properties: Mapping[str, Mapping[str, Any]]
    required: tuple[str, ...] = ()


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _integer(description: str) -> dict[str, Any]:
    return {"type": "integer", "description": description}


def _range(description: str) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "integer"}, "description": description}


def _command(*names: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(names), "description": "What to do."}


_FILE_PATH = _text("Path of the file or folder.")
_VIEW_RANGE = _range("With view: the first and the last line to show; -1 is the end of the file.")
_OLD_TEXT = _text("With str_replace: the text to replace, which must occur exactly once.")
_NEW_TEXT = _text("With str_replace: the text that replaces it.")
_FILE_TEXT = _text("With create: the content of the file.")
_INSERT_LINE = _integer("With insert: the line after which to insert; 0 is the start of the file.")
_EDITOR_COMMANDS = ("view", "create", "str_replace", "insert")

_BASH = ClientTool(
    "bash",
    "Run a command in a persistent bash session and return its output.",
    {
        "command": _text("The command to run."),
        "restart": {"type": "boolean", "description": "Restart the session instead."},
    },
)
_MEMORY = ClientTool(
    "memory",
    "Read and change the files below /memories, which persist between conversations.",
    {
        "command": _command(*_EDITOR_COMMANDS, "delete", "rename"),
        "path": _text("Path of the file or folder, below /memories."),
        "view_range": _VIEW_RANGE,
        "file_text": _FILE_TEXT,
        "old_str": _OLD_TEXT,
        "new_str": _NEW_TEXT,
        "insert_line": _INSERT_LINE,
        "insert_text": _text("With insert: the text to insert."),
        "old_path": _text("With rename: the current path."),
        "new_path": _text("With rename: the new path."),
    },
    ("command",),
)


def _text_editor(date: str) -> ClientTool:
    old = date <= _LAST_UNDO_DATE
    return ClientTool(
        "str_replace_editor" if old else "str_replace_based_edit_tool",
        "View, create and edit text files.",
        {
            "command": _command(*_EDITOR_COMMANDS, *(("undo_edit",) if old else ())),
            "path": _FILE_PATH,
            "view_range": _VIEW_RANGE,
            "file_text": _FILE_TEXT,
            "old_str": _OLD_TEXT,
            "new_str": _text("The text that replaces `old_str`, or that insert inserts.")
            if old
            else _NEW_TEXT,
            "insert_line": _INSERT_LINE,
            **({} if old else {"insert_text": _text("With insert: the text to insert.")}),
        },
        ("command", "path"),
    )


def decode_client_tool(tool: wire.Tool) -> ToolSpec | None:
    """Decode a tool that the client runs and that only its type defines."""
    found = _CLIENT_TYPE.fullmatch(tool.type or "")
    if found is None:
        return None
    kind, date = found.groups()
    known = {"bash": _BASH, "memory": _MEMORY}.get(kind) or _text_editor(date)
    return ToolSpec(
        name=tool.name or known.name,
        description=known.description,
        parameters={
            "type": "object",
            "properties": known.properties,
            "required": list(known.required),
        },
    )


def decode_server_tool(value: object, path: str, position: int) -> ServerTool:
    """Decode a tool that the server runs. `position` counts the client tools before it."""
    tool = convert(value, wire.ServerToolIn, path)
    found = _SERVER_KIND.fullmatch(tool.type)
    kind: ServerToolKind = found[1] if found else "other"  # type: ignore[assignment]
    return ServerTool(
        kind=kind,
        name=tool.name or (kind if found else tool.type),
        type=tool.type,
        field=path,
        position=position,
        max_uses=None if tool.max_uses is None else int(tool.max_uses),
        allowed_domains=tuple(tool.allowed_domains or ()),
        blocked_domains=tuple(tool.blocked_domains or ()),
        location=tool.user_location,
        max_content_tokens=None
        if tool.max_content_tokens is None
        else int(tool.max_content_tokens),
        unused=tuple(f"{path}.{field}" for field in _fields_of(value) if field not in _USED_FIELDS),
    )


def _fields_of(value: object) -> list[str]:
    """Return the fields of a declaration that request something."""
    return (
        [name for name, one in value.items() if one is not None] if isinstance(value, dict) else []
    )
