"""Run the query and check its rows."""

import sqlite3
import sys
from pathlib import Path

SCHEMA = """
    CREATE TABLE departments (id INTEGER PRIMARY KEY, name TEXT NOT NULL);
    CREATE TABLE employees (id INTEGER PRIMARY KEY, name TEXT NOT NULL, salary INTEGER NOT NULL,
        department_id INTEGER NOT NULL REFERENCES departments (id));
    INSERT INTO departments VALUES (1, 'sales'), (2, 'art'), (3, 'empty'), (4, 'lab');
    INSERT INTO employees VALUES (1, 'Zoe', 50, 1), (2, 'Ada', 50, 1), (3, 'Bo', 10, 1),
        (4, 'Cyn', 99, 2), (5, 'Dev', 7, 4), (6, 'Eva', 70, 4);
"""
EXPECTED = [
    ("art", 1, 99, "Cyn"),
    ("empty", 0, None, None),
    ("lab", 2, 70, "Eva"),
    ("sales", 3, 50, "Ada"),
]


def find_problem() -> str | None:
    database = sqlite3.connect(":memory:")
    database.executescript(SCHEMA)
    rows = database.execute(Path("report.sql").read_text("utf-8")).fetchall()
    return None if rows == EXPECTED else f"the rows are {rows}, expected {EXPECTED}"


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
