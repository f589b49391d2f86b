"""Read files."""


def read_lines(path):
    print(f"reading {path}")
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        print(f"ERROR: {path} does not exist")
        return []
    if not lines:
        print(f"WARNING: {path} is empty")
    return lines
