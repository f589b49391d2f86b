"""The declared fields of the APIs: what each is for, and what the server does with it.

Each API has one registry, which decoding, the tables in the documentation and the tests share. No
field is ignored silently: a field that changes what may be generated is honoured or rejected, a
hint is honoured or reported, and a field that no registry declares is reported.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from dovetail_model import RejectedField, Unsupported

FieldKind = Literal["input", "constraint", "stop", "tool", "sampling", "hint"]
Support = Literal["honoured", "engine", "reported", "rejected"]

#: Kinds that change what may be generated: such a field is never only reported.
BINDING_KINDS: frozenset[FieldKind] = frozenset(("constraint", "stop", "tool", "sampling"))


class Field(msgspec.Struct, frozen=True):
    """One field of a request.

    name: Path from the body: `stop`, `stream_options.include_usage`, `tools[].strict`.
    kind: What the field is for; `input` includes the form of the response.
    example: A value that requests something.
    about: The row's text in the documentation.
    support: `engine` means honoured if the engine supports it, and rejected otherwise.
    neutral: Values that request nothing, in addition to null.
    remedy: What to send instead of a rejected field.
    """

    name: str
    kind: FieldKind
    example: Any
    about: str = ""
    support: Support = "honoured"
    neutral: tuple[Any, ...] = ()
    remedy: str = ""


class _Node:
    """A segment of a path: its own field, and the fields within its value."""

    __slots__ = ("children", "field")

    def __init__(self) -> None:
        self.field: Field | None = None
        self.children: dict[str, _Node] = {}


class FieldRegistry:
    """All declared fields of one API."""

    __slots__ = ("_root", "api", "fields")

    def __init__(self, api: str, *groups: Iterable[Field]) -> None:
        self.api = api
        self.fields = tuple(field for group in groups for field in group)
        self._root = _Node()
        for field in self.fields:
            node = self._root
            for segment in field.name.split("."):
                node = node.children.setdefault(segment, _Node())
            if node.field is not None:
                raise ValueError(f"{api} declares `{field.name}` twice")
            node.field = field

    def check(self, sent: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the paths of fields without effect; reject a field that must have one."""
        return _report(_unused(self._root, sent, ""))

    def inspect(self, sent: Mapping[str, Any]) -> "UnusedFields":
        """Return the fields without effect, and those that must have one."""
        found = list(_unused(self._root, sent, ""))
        return UnusedFields(
            tuple(one for one in found if isinstance(one, str)),
            tuple(one for one in found if isinstance(one, RejectedField)),
        )

    def check_item(self, array: str, item: object) -> tuple[str, ...]:
        """Like `check` for one item of an array, such as a tool. Paths do not have its index."""
        node = self._root.children.get(f"{array}[]")
        if node is None or not isinstance(item, Mapping):
            return ()
        return _report(_unused(node, item, f"{array}[]."))

    def undeclared(self, sent: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a body that are not declared."""
        known = self._root.children
        return {name: value for name, value in sent.items() if name not in known}


def _report(unused: "Iterator[str | RejectedField]") -> tuple[str, ...]:
    """Return the paths to report; reject a field that must have an effect."""
    paths: list[str] = []
    for one in unused:
        if isinstance(one, RejectedField):
            raise Unsupported(one.message, param=one.path)
        paths.append(one)
    return tuple(paths)


class UnusedFields(msgspec.Struct, frozen=True):
    """The fields of a body without effect: those to report by path, and those to reject."""

    reported: tuple[str, ...] = ()
    rejected: tuple[RejectedField, ...] = ()


def _unused(node: _Node, sent: Mapping[str, Any], prefix: str) -> Iterator[str | RejectedField]:
    for name, value in sent.items():
        if value is None:
            continue
        path, child = f"{prefix}{name}", node.children.get(name)
        if child is None:
            yield path
        elif child.field is not None and child.field.support in ("rejected", "reported"):
            yield from _unsupported(child.field, value, path)
        elif child.children and isinstance(value, Mapping):
            yield from _unused(child, value, f"{path}.")


def _unsupported(field: Field, value: Any, path: str) -> Iterator[str | RejectedField]:
    if any(value == neutral for neutral in field.neutral):
        return
    if field.support == "rejected":
        remedy = f", {field.remedy}" if field.remedy else ""
        yield RejectedField(path, f"{path}: is not supported{remedy}")
    else:
        yield path
