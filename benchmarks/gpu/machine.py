"""Description of the machine of the experiments."""

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
    """Describe the machine and the engine."""
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
    except OSError:  # git is not installed
        return "unknown"


def page_of(cached: Iterable[int]) -> int | None:
    """Infer the cache's page size from cached tokens, which are multiples of it."""
    return reduce(gcd, cached, 0) or None


def _gpu() -> str:
    """Return the GPU's name and driver from nvidia-smi; empty without a GPU."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.strip().partition("\n")[0]
