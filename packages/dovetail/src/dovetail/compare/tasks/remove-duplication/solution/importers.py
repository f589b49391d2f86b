"""Read files of key;value lines."""


def read_pairs(path, field, convert):
    rows = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            parts = [part.strip() for part in line.split(";")]
            if len(parts) != 2:
                raise ValueError(f"line {number}: 2 fields expected, got {len(parts)}")
            rows.append({field: parts[0], "value": convert(parts[1])})
    return rows


def read_prices(path):
    return read_pairs(path, "product", float)


def read_stock(path):
    return read_pairs(path, "product", int)


def read_labels(path):
    return read_pairs(path, "code", str)
