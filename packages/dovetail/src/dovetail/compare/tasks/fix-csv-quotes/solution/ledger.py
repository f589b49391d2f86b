"""Read transactions from CSV text with a header line."""

import csv
import io


def read_transactions(text):
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    for row in rows:
        row["amount"] = float(row["amount"])
    return rows
