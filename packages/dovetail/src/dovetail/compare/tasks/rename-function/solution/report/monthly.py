from storage.reader import load_rows


def monthly(path):
    return [row for row in load_rows(path) if row["kind"] == "month"]
