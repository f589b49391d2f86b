"""Count lines, words and characters of files."""

import argparse
import json
import sys


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    options = parser.parse_args()
    counts, status = {}, 0
    for name in options.files:
        try:
            with open(name, encoding="utf-8") as file:
                text = file.read()
        except FileNotFoundError:
            print(f"wc.py: {name}: not found", file=sys.stderr)
            status = 1
            continue
        counts[name] = {
            "lines": len(text.splitlines()),
            "words": len(text.split()),
            "characters": len(text),
        }
    if options.json:
        print(json.dumps(counts))
    else:
        for name, count in counts.items():
            print(*count.values(), name)
    return status


if __name__ == "__main__":
    sys.exit(main())
