"""The reports about each server as tables of a page."""

import re
from collections.abc import Sequence
from tempfile import gettempdir
from typing import Any

from tools.verify.subjects import Subject

BEGIN, END = "<!-- servers: tools/verify_servers.py writes this -->", "<!-- servers end -->"
SavedReport = tuple[Subject, Any]
#: The folder of a model while its server was tested.
_SCRATCH = re.compile(re.escape(gettempdir()) + r"/dovetail-verify-[\w/]+")


def with_tables(document: str, reports: Sequence[SavedReport]) -> str:
    """The document with new tables between the marks, or at its end."""
    before, _, rest = document.partition(BEGIN)
    behind = rest.partition(END)[2]
    return f"{before}{BEGIN}\n\n{_tables(reports)}\n{END}{behind}"


def _tables(reports: Sequence[SavedReport]) -> str:
    head = "| server | version | model and engine | date | passed | failed | does not apply |"
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
    """What each harness would meet."""
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
        return [*lines, "Nothing failed."]
    lines += ["| check | clause | found | what came |", "|---|---|---|---|"]
    return [*lines, *(_failure(finding) for finding in bad)]


def _failure(found: Any) -> str:
    cells = (f"`{found['id']}`", found["clause"], _cell(found["note"]), _cell(found["came"], 160))
    return f"| {' | '.join(cells)} |"


def _cell(text: str, longest: int = 200) -> str:
    text = _SCRATCH.sub("…", " ".join(text.split()))
    text = text if len(text) <= longest else f"{text[:longest]} …"
    return text.replace("|", "\\|").replace("<", "&lt;")
