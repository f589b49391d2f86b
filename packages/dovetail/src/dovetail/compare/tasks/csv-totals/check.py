"""Check the totals against the orders."""

import csv
import hashlib
import io
import json
import sys
from decimal import Decimal
from pathlib import Path

ORDERS_SHA256 = "573601745c2dbc12f34f1514768d1b919aaae80be0e4f5cc30e78025f044ed97"


def find_problem() -> str | None:
    source = Path("orders.csv").read_bytes()
    if hashlib.sha256(source).hexdigest() != ORDERS_SHA256:
        return "orders.csv was changed"
    expected: dict[str, dict[str, object]] = {}
    for row in csv.DictReader(io.StringIO(source.decode())):
        entry = expected.setdefault(row["customer"], {"orders": 0, "total": Decimal(0)})
        entry["orders"] += 1
        entry["total"] += int(row["quantity"]) * Decimal(row["price"])
    for entry in expected.values():
        entry["total"] = f"{entry['total']:.2f}"
    found = json.loads(Path("totals.json").read_text("utf-8"))
    if found != expected:
        return f"totals.json is {found}, expected {expected}"
    return None if list(found) == sorted(found) else "the customers are not sorted"


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
