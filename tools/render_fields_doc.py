"""Write the tables of request fields into their pages; with --check, fail if one is not current."""

import argparse
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from dovetail_protocols import (
    FIELD_REGISTRIES,
    Field,
    FieldRegistry,
    UpstreamApi,
    upstream_support,
)
from dovetail_protocols.engine_fields import ENGINE_FIELDS
from dovetail_protocols.nvext_fields import NVEXT_FIELDS

PAGES = Path(__file__).resolve().parent.parent / "docs" / "apis"
END = "<!-- end of fields -->\n"
SUPPORT = {
    "honoured": "yes",
    "engine": "if the engine supports it, else rejected",
    "reported": "no, reported",
    "rejected": "no, rejected",
}
#: The page that shows each table. Fields that all APIs share have their own.
TABLES = {
    "messages": "messages.md",
    "responses": "responses.md",
    "chat": "chat.md",
    "completions": "chat.md",
    "shared": "fields.md",
}
UPSTREAM_APIS: tuple[UpstreamApi, ...] = ("responses", "chat")
UPSTREAM_COLUMNS = {
    "messages": ("Responses upstream", "Chat upstream"),
    "responses": ("Responses upstream", "Chat upstream"),
    "chat": ("Responses upstream", "Chat upstream"),
    "shared": ("upstream of the same API", "upstream of another API"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="only check, and fail if a page is out of date"
    )
    check: bool = parser.parse_args().check
    tables = {registry.api: _own_fields(registry) for registry in FIELD_REGISTRIES}
    tables["shared"] = [*ENGINE_FIELDS, *NVEXT_FIELDS]
    stale = [name for name, fields in tables.items() if not _update(name, fields, check)]
    for name in stale:
        print(f"docs/apis/{TABLES[name]} is not current: run `make docs`", file=sys.stderr)
    return 1 if stale else 0


def _own_fields(registry: FieldRegistry) -> list[Field]:
    """Return the fields of an API that are not shared with all others."""
    shared = {field.name for field in (*ENGINE_FIELDS, *NVEXT_FIELDS)}
    return [field for field in registry.fields if field.name not in shared]


def _update(name: str, fields: Iterable[Field], check: bool) -> bool:
    """Write a table into its page. Returns whether the page is current."""
    path = PAGES / TABLES[name]
    before = path.read_text(encoding="utf-8")
    begin = f"<!-- fields of {name}: made by `make docs` -->\n"
    section = f"{begin}\n{_table(name, fields)}\n{END}"
    page = re.sub(re.escape(begin) + ".*?" + re.escape(END), lambda _: section, before, flags=re.S)
    if begin not in before or (check and page != before):
        return False
    path.write_text(page, encoding="utf-8")
    return True


def _table(name: str, fields: Iterable[Field]) -> str:
    """Return the rows, with columns for the engine `openai` unless it does not serve the API."""
    columns = ["field", "kind", "honoured", *UPSTREAM_COLUMNS.get(name, ()), "notes"]
    head = f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}\n"
    return head + "".join(_row(name, field) for field in fields)


def _row(name: str, field: Field) -> str:
    remedy = field.remedy[:1].upper() + field.remedy[1:]
    notes = " ".join(part for part in (field.about, f"{remedy}." if remedy else "") if part)
    cells = [f"`{field.name}`", field.kind, SUPPORT[field.support]]
    if name == "shared":
        own = {upstream_support(api, field, api) for api in UPSTREAM_APIS}
        other = {upstream_support(api, field, upstream) for api, upstream in _other_pairs()}
        cells += [" or ".join(sorted(own)), " or ".join(sorted(other))]
    elif name in UPSTREAM_COLUMNS:
        cells += [upstream_support(name, field, api) for api in UPSTREAM_APIS]
    cells.append(notes.replace("|", "\\|"))
    return f"| {' | '.join(cells)} |\n"


def _other_pairs() -> list[tuple[str, UpstreamApi]]:
    """Return the APIs of a client and of an upstream that differ."""
    return [
        (api, upstream)
        for api in ("messages", "responses", "chat")
        for upstream in UPSTREAM_APIS
        if api != upstream
    ]


if __name__ == "__main__":
    sys.exit(main())
