"""Where the experiments ran."""

import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import reduce
from math import gcd
from typing import Any

from benchmarks import report


def machine(facts: Mapping[str, Any], model: str, commit: str | None) -> dict[str, Any]:
    """The machine, and the engine's own facts."""
    gpu, _, driver = _gpu().partition(", ")
    names = ("attention", "device", "dtype", "torch", "transformers", "cache_tokens")
    return {
        "gpu": gpu or "none",
        "driver": driver,
        "cpu": report.processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{name: facts.get(name) for name in names},
        "page": facts.get("page"),
        "commit": commit or _commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "model": model,
    }


def _commit() -> str:
    try:
        return report.commit()
    except OSError:  # no git there
        return "unknown"


def page_of(cached: Iterable[int]) -> int | None:
    """The page of a cache whose finds were these: they are whole pages."""
    return reduce(gcd, cached, 0) or None


def _gpu() -> str:
    """Name and driver, as the driver's own tool tells them; nothing where there is none."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.strip().partition("\n")[0]
