"""Perfetto's own trace processor, which its UI uses to load traces, in Node.js.

tools/fetch_perfetto.py fetches it. perfetto_engine.mjs runs it.
"""

import json
import subprocess
from pathlib import Path
from shutil import which
from typing import Any

import pytest

FOLDER = Path(__file__).parents[4] / ".cache" / "perfetto"
ENGINE = Path(__file__).parent / "perfetto_engine.mjs"
TIMEOUT_SECONDS = 100.0
#: Errors of a trace that the processor counted.
FAULTS = "select name, value from stats where severity != 'info' and value > 0"
#: Slices with their thread and their enclosing slice.
SLICES = """
select slice.category, slice.name, slice.ts, slice.dur, slice.depth, thread.name, process.name,
    above.category, above.ts, above.dur
from slice join thread_track on slice.track_id = thread_track.id
join thread using (utid) join process using (upid)
left join slice above on slice.parent_id = above.id order by slice.id
"""
#: Arrows, by the slices at their ends.
FLOWS = """
select begun.category, begun.name, begun.ts, ended.category, ended.ts
from flow join slice begun on slice_out = begun.id join slice ended on slice_in = ended.id
order by flow.id
"""
#: Each counter: its process, its name, its number of values, the maximum.
COUNTERS = """
select process.name, process_counter_track.name, count(*), max(value)
from counter join process_counter_track on track_id = process_counter_track.id
join process using (upid) group by 1, 2 order by 1, 2
"""


def run_queries(trace: Path, *queries: str) -> list[list[list[Any]]]:
    """Return the rows of each query on this trace."""
    node = which("node")
    if node is None or not FOLDER.is_dir():
        pytest.skip("no Node.js, or no Perfetto: python tools/fetch_perfetto.py")
    ran = subprocess.run(
        [node, ENGINE, FOLDER, trace, *queries],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    rows: list[list[list[Any]]] = json.loads(ran.stdout)
    return rows
