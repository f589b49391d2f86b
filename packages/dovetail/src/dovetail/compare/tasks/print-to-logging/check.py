"""Check loggers, levels, messages and that values are passed as arguments."""

import contextlib
import io
import logging
import sys

sys.dont_write_bytecode = True
sys.pycache_prefix = "/nonexistent"  # never load bytecode from the workspace
sys.path.append(".")


EXPECTED = [
    ("importer.files", "INFO", "reading none.txt"),
    ("importer.files", "ERROR", "none.txt does not exist"),
    ("importer.files", "INFO", "reading /dev/null"),
    ("importer.files", "WARNING", "/dev/null is empty"),
    ("importer.numbers", "WARNING", "not a number: x%s"),
    ("importer.numbers", "INFO", "converted 1 of 2 lines"),
]


def find_problem() -> str | None:
    from importer.files import read_lines
    from importer.numbers import to_numbers

    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        results = read_lines("none.txt"), read_lines("/dev/null"), to_numbers(["1", "x%s"])
    if output.getvalue() or results != ([], [], [1.0]):
        return f"printed {output.getvalue()!r} and returned {results}"
    found = [(one.name, one.levelname, one.getMessage()) for one in records]
    if found != EXPECTED:
        return f"logged {found}, expected {EXPECTED}"
    formatted = [one.msg for one in records if not one.args]
    return f"formatted before the logging call: {formatted}" if formatted else None


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
