"""Configuration of all tests.

Hypothesis has no deadline, for slow machines. The number of processes for `-n auto` depends on
cores and memory. Caches of the tests are cleared between packages.
"""

import ctypes
import functools
import gc
import os
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("parser_cases")  # a failing case shows the difference

settings.register_profile("dovetail", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dovetail")

pytest_plugins = ("harness_runs",)  # fixtures for real clients, and the table of their runs


MAX_PROCESS_BYTES = 3 << 30  # of one process of pytest and the servers that its tests start


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Return the number of processes for `-n auto`: more than cores, since tests also wait."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ or sys.platform != "linux":
        return None
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(len(os.sched_getaffinity(0)) * 3 // 2, memory // MAX_PROCESS_BYTES))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    result = yield
    if nextitem is not None and _package(item) != _package(nextitem):
        _clear_caches()
    return result


def _package(item: pytest.Item) -> tuple[str, ...]:
    """Return the folders up to `tests`."""
    parts = item.path.parts
    return parts[: parts.index("tests") + 1] if "tests" in parts else ()


def _clear_caches() -> None:
    """Free what test modules cache, mostly real tokenizers, which take gigabytes together."""
    for module in list(sys.modules.values()):
        if "tests" in Path(getattr(module, "__file__", None) or "").parts:
            for value in list(vars(module).values()):
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
        if trim is not None:
            trim(0)
