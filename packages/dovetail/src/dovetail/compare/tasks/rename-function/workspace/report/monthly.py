from storage.reader import fetch_data


def monthly(path):
    return [row for row in fetch_data(path) if row["kind"] == "month"]
