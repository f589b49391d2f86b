"""Measure the preparation of turns: inside one process, then over HTTP."""

import argparse

from benchmarks import report
from benchmarks.prepare import inside, over_http


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prepare", description=__doc__)
    parser.add_argument("--against", choices=["dynamo"], help="server to compare with")
    parser.add_argument(
        "--only", choices=["inside", "http"], help="run one of the two measurements"
    )
    parser.add_argument("--write", action="store_true", help="write the results to RESULTS.md")
    options = parser.parse_args()
    results = []
    if options.only != "http" and (found := inside.run()) is not None:
        results.append(found)
    if options.only != "inside":
        results.append(over_http.run(against_dynamo=options.against == "dynamo"))
    for result in results:
        print(f"\n{result.numbers}\n{result.reading}", end="")
    if options.write:
        report.write(results)


if __name__ == "__main__":
    main()
