"""Run `dovetail verify` on Dovetail and on other servers, and write the tables of docs/verify.md.

Names of servers on the command line limit the run to them, and `--tables` runs none. The tables use
the saved reports of the other servers.
"""

import json
import subprocess
import sys
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.verify.subjects import SUBJECTS, Subject  # noqa: E402
from tools.verify.tables import with_tables  # noqa: E402

DOCUMENT = ROOT / "docs" / "verify.md"
REPORTS = ROOT / ".cache" / "verify"
RUN_TIMEOUT_SECONDS = 3600.0


def main(arguments: list[str]) -> int:
    REPORTS.mkdir(parents=True, exist_ok=True)
    known = {subject.name: subject for subject in SUBJECTS}
    names = [name for name in arguments if name != "--tables"] if arguments else list(known)
    if set(names) - set(known):
        print(f"unknown server; the servers are {', '.join(known)}", file=sys.stderr)
        return 2
    for name in names:
        judge(known[name])
    found = [subject for subject in SUBJECTS if _file(subject).exists()]
    reports = [(subject, json.loads(_file(subject).read_bytes())) for subject in found]
    document = DOCUMENT.read_text("utf-8") if DOCUMENT.exists() else ""
    DOCUMENT.write_text(with_tables(document, reports), "utf-8")
    return 0


def judge(subject: Subject) -> None:
    """Start the server, run the suite on it, and save the report."""
    print(f"== {subject.title}: {subject.how}", flush=True)
    with TemporaryDirectory(prefix="dovetail-verify-") as scratch:
        report = Path(scratch) / "report.json"
        with contextmanager(subject.start)(Path(scratch)) as arguments:
            command = [sys.executable, "-m", "dovetail", "verify", *arguments]
            ended = subprocess.run(
                [*command, "--json", str(report)], timeout=RUN_TIMEOUT_SECONDS
            ).returncode
        if not report.exists():
            raise RuntimeError(f"no report on {subject.name}: dovetail verify exited with {ended}")
        found = json.loads(report.read_bytes())
    today = datetime.now(UTC).date().isoformat()
    saved = {"version": subject.release(), "date": today, "report": found}
    _file(subject).write_text(json.dumps(saved, indent=1), "utf-8")


def _file(subject: Subject) -> Path:
    return REPORTS / f"{subject.name}.json"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
