"""Run all benchmarks, or those that are named."""

import argparse
import sys

from benchmarks import against_vllm, arguments, codecs, prepare, prose, report

BENCHMARKS = ("arguments", "prose", "codecs", "prepare", "vllm")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--write", action="store_true", help="write the results to RESULTS.md")
    parser.add_argument("--vllm", metavar="PYTHON", help="interpreter that can import vllm")
    options = parser.parse_args()
    names = options.names or BENCHMARKS
    unknown = set(names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"unknown benchmarks: {', '.join(sorted(unknown))}")
    results = [result for name in names if (result := run(name, options.vllm)) is not None]
    for result in results:
        print(f"\n{result.reading}", end="")
    if options.write:
        report.write(results)
    failures = [failure for result in results for failure in result.failures]
    for failure in failures:
        print(f"FAIL: {failure}")
    return 1 if failures else 0


def run(name: str, vllm: str | None) -> report.Result | None:
    print(f"{name}:", flush=True)
    if name == "arguments":
        return arguments.run()
    if name == "prose":
        return prose.run()
    if name == "codecs":
        return codecs.run()
    if name == "prepare":
        return prepare.run()
    python = vllm or against_vllm.here()
    if python is None:
        print("  skipped: vllm cannot be imported; set --vllm to an interpreter that has it")
        return None
    return against_vllm.run(python)


if __name__ == "__main__":
    sys.exit(main())
