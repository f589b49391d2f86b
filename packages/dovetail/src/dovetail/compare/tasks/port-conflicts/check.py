"""Check the ports and that no other setting differs."""

import hashlib
import json
import sys
import tomllib
from pathlib import Path

SERVICES = 26
CONTENT_SHA256 = "afdcc99384bbfdc76722758a57f5abeb88744f46f24aa7ce11e6738f0299d887"


def find_problem() -> str | None:
    content = []
    for number, path in enumerate(sorted(Path("services").glob("*.toml"))):
        settings = tomllib.loads(path.read_text("utf-8"))
        port = settings["service"]["port"]
        if port != 7100 + number:
            return f"{path} has the port {port}, expected {7100 + number}"
        content.append(settings)
    if len(content) != SERVICES:
        return f"there are {len(content)} services, expected {SERVICES}"
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return None if digest == CONTENT_SHA256 else "another setting was changed"


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
