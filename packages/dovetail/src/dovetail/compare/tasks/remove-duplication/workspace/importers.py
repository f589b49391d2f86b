"""Read files of key;value lines."""


def read_prices(path):
    rows = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            parts = [part.strip() for part in line.split(";")]
            if len(parts) != 2:
                raise ValueError(f"line {number}: 2 fields expected, got {len(parts)}")
            rows.append({"product": parts[0], "value": float(parts[1])})
    return rows


def read_stock(path):
    rows = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            parts = [part.strip() for part in line.split(";")]
            if len(parts) != 2:
                raise ValueError(f"line {number}: 2 fields expected, got {len(parts)}")
            rows.append({"product": parts[0], "value": int(parts[1])})
    return rows


def read_labels(path):
    rows = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            parts = [part.strip() for part in line.split(";")]
            if len(parts) != 2:
                raise ValueError(f"line {number}: 2 fields expected, got {len(parts)}")
            rows.append({"code": parts[0], "value": str(parts[1])})
    return rows
