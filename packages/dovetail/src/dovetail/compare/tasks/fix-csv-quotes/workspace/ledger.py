"""Read transactions from CSV text with a header line."""


def read_transactions(text):
    header, *lines = text.splitlines()
    names = header.split(",")
    rows = [dict(zip(names, line.split(","))) for line in lines]
    for row in rows:
        row["amount"] = float(row["amount"])
    return rows
