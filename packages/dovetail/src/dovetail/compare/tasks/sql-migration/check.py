"""Run the migration on a database and check its tables."""

import sqlite3
import sys
from pathlib import Path

SCHEMA = """
    CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, street TEXT, city TEXT);
    INSERT INTO customers VALUES (1, 'Ada', '1 Mill Road', 'Bath'), (2, 'Bo', NULL, NULL),
        (3, 'Cyn', '', 'Ely'), (4, 'Dev', '', ''), (9, 'Eva', 'Quay', NULL);
"""
ADDRESSES = [(1, "1 Mill Road", "Bath"), (3, None, "Ely"), (9, "Quay", None)]
CUSTOMERS = [(1, "Ada"), (2, "Bo"), (3, "Cyn"), (4, "Dev"), (9, "Eva")]


def find_problem() -> str | None:
    database = sqlite3.connect(":memory:")
    database.executescript(SCHEMA)
    database.executescript(Path("migration.sql").read_text("utf-8"))
    customers = database.execute("SELECT * FROM customers ORDER BY id").fetchall()
    if customers != CUSTOMERS:
        return f"customers has the rows {customers}, expected {CUSTOMERS}"
    rows = database.execute(
        "SELECT customer_id, street, city FROM addresses ORDER BY customer_id"
    ).fetchall()
    if rows != ADDRESSES:
        return f"addresses has the rows {rows}, expected {ADDRESSES}"
    columns = [row[1:4] for row in database.execute("PRAGMA table_info(addresses)")]
    if [name for name, _, _ in columns] != ["id", "customer_id", "street", "city"]:
        return f"addresses has the columns {columns}"
    if not columns[1][2]:
        return "addresses.customer_id may be null"
    references = [row[2:4] for row in database.execute("PRAGMA foreign_key_list(addresses)")]
    if references != [("customers", "customer_id")]:
        return f"addresses has the foreign keys {references}"
    ids = database.execute("SELECT count(DISTINCT id) FROM addresses").fetchone()[0]
    return None if ids == len(ADDRESSES) else "the rows of addresses have no ids"


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
