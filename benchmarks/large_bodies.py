"""How long do 30 paced streams pause while bodies arrive that are expensive to decode?

`python -m benchmarks.large_bodies [NAME...]` prints the longest gap of a stream at a server
that gets each body, and at the same time at another one. The bodies are those of the tests in
`packages/dovetail/tests/support/starvation.py`.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "packages" / "dovetail" / "tests" / "support"))

from starvation import LARGE_BODIES, large_bodies


def main(names: list[str]) -> None:
    for result in large_bodies(names or LARGE_BODIES):
        figures = result.figures
        gaps = f"{figures['gap_ms']} ms, other server {figures['baseline_gap_ms']} ms"
        growth = f"{figures['extra_memory_mb']:+} MB"
        print(
            f"{result.name:20} longest gap {gaps}, memory {growth}, statuses {figures['statuses']}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
