"""Tables for the documentation, made of the report on each server."""

import re
from collections.abc import Sequence
from tempfile import gettempdir
from typing import Any

from tools.verify.subjects import Subject

BEGIN, END = "<!-- servers: tools/verify_servers.py writes this -->", "<!-- servers end -->"
SavedReport = tuple[Subject, Any]
#: Path of a temporary model folder, which a server may include in its responses.
_SCRATCH = re.compile(re.escape(gettempdir()) + r"/dovetail-verify-[\w/]+")


def with_tables(document: str, reports: Sequence[SavedReport]) -> str:
    """Return the document with new tables between the markers, or at its end."""
    before, _, rest = document.partition(BEGIN)
    behind = rest.partition(END)[2]
    return f"{before}{BEGIN}\n\n{_tables(reports)}\n{END}{behind}"


def _tables(reports: Sequence[SavedReport]) -> str:
    head = "| server | version | model and engine | date | passed | failed | not applicable |"
    lines = [head, "|---|---|---|---|--:|--:|--:|", *(_summary(*one) for one in reports)]
    lines += ["", *_standings(reports)]
    for subject, found in reports:
        lines += _failures(subject, found)
    return "\n".join(lines) + "\n"


def _summary(subject: Subject, found: Any) -> str:
    counts = found["report"]["outcomes"]
    figures = (counts["pass"], counts["fail"] + counts["error"], counts["not applicable"])
    cells = (subject.title, found["version"], subject.how, found["date"], *figures)
    return f"| {' | '.join(map(str, cells))} |"


def _standings(reports: Sequence[SavedReport]) -> list[str]:
    """Return the table of verdicts per harness."""
    names = list(reports[0][1]["report"]["harnesses"]) if reports else []
    lines = [f"| server | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    for subject, found in reports:
        harnesses = found["report"]["harnesses"]
        cells = " | ".join(harnesses[name]["standing"] for name in names)
        lines.append(f"| {subject.title}, {subject.how} | {cells} |")
    return lines


def _failures(subject: Subject, found: Any) -> list[str]:
    bad = [f for f in found["report"]["findings"] if f["outcome"] in ("fail", "error")]
    lines = ["", f"### {subject.title} {found['version']}: {subject.how}", ""]
    if not bad:
        return [*lines, "No check failed."]
    lines += ["| check | clause | found | received |", "|---|---|---|---|"]
    return [*lines, *(_failure(finding) for finding in bad)]


def _failure(found: Any) -> str:
    cells = (f"`{found['id']}`", found["clause"], _cell(found["note"]), _cell(found["came"], 160))
    return f"| {' | '.join(cells)} |"


def _cell(text: str, longest: int = 200) -> str:
    text = _SCRATCH.sub("…", " ".join(text.split()))
    text = text if len(text) <= longest else f"{text[:longest]} …"
    return text.replace("|", "\\|").replace("<", "&lt;")
