"""The requests of the guided decoding tests: tools, choices, and valid and invalid calls."""

import json
from typing import Any

from dovetail_model import ToolCallBlock, ToolChoice
from dovetail_parsers import families

BY_NAME = {family.name: family for family in families() if family.tools}

REQUIRED = ToolChoice("required")
ONE = ToolChoice("required", parallel=False)

BOOK: dict[str, Any] = {
    "name": "book",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "seat": {"enum": ["aisle", "window"]},
            "meals": {"type": "array", "items": {"type": "string"}},
            "guest": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "age": {"type": "number"}},
                "required": ["name"],
            },
            "rush": {"type": "boolean"},
        },
        "required": ["city", "seat"],
    },
}
CANCEL: dict[str, Any] = {
    "name": "cancel",
    "parameters": {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]},
}
PATCH: dict[str, Any] = {"type": "custom", "custom": {"name": "apply_patch"}}
OFFERED = [BOOK, CANCEL, PATCH]
GOOD = {"city": "Paris", "days": 3, "seat": "aisle", "guest": {"name": "Ann"}, "rush": True}


REASONING_FAMILIES = [name for name, family in BY_NAME.items() if family.reasoning_parser]


def call(arguments: dict[str, Any], name: str = "book") -> ToolCallBlock:
    return ToolCallBlock("", name, json.dumps(arguments))


def matches_schema(block: ToolCallBlock) -> bool:
    """Return whether a call's arguments have the types that its tool's schema requires."""
    if block.custom:
        return block.name == "apply_patch"
    value = json.loads(block.arguments)
    if block.name == "cancel":
        return list(value) == ["id"] and type(value["id"]) is int
    guest = value.get("guest", {"name": ""})
    return (
        block.name == "book"
        and type(value["city"]) is str
        and type(value.get("days", 0)) is int
        and value["seat"] in ("aisle", "window")
        and all(type(meal) is str for meal in value.get("meals", []))
        and type(guest["name"]) is str
        and type(guest.get("age", 0)) in (int, float)
        and type(value.get("rush", True)) is bool
        and value.keys() <= BOOK["parameters"]["properties"].keys()
    )
