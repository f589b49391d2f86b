"""The result documents of runs, and the numbers in them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any

CASES = ("A", "B", "C", "D", "E", "E2", "F", "F2")
NO_MODEL = "no model"


@dataclass(frozen=True)
class Run:
    """One result document, named by its attention backend, in which runs differ."""

    name: str
    document: Mapping[str, Any]

    @property
    def machine(self) -> Mapping[str, Any]:
        facts: Mapping[str, Any] = self.document.get("machine", {})
        return facts

    def experiment(self, name: str) -> Mapping[str, Any] | None:
        found: Mapping[str, Any] | None = self.document.get("experiments", {}).get(name)
        return found

    def rows(self, name: str) -> Sequence[Mapping[str, Any]]:
        """Return the rows of an experiment; none if it did not run."""
        found: Sequence[Mapping[str, Any]] = (self.experiment(name) or {}).get("rows", ())
        return found

    def values(self, case: str, key: str) -> list[float]:
        """Return the numbers of a case A to F, round by round."""
        rows = self.rows(case)
        return list(rows[0].get(key) or ()) if rows else []

    def middle(self, case: str, key: str) -> float | None:
        """Return the median of a case."""
        values = self.values(case, key)
        return median(values) if values else None

    def added(self, case: str) -> float | None:
        """Return the time that the server adds: a difference of medians of separate runs."""
        took, alone = self.middle(case, "client_ms"), self.middle(case, "alone_ms")
        return took - alone if took is not None and alone is not None else None


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Read the runs of some files. Those with the same attention backend get a number."""
    return named([json.loads(path.read_text("utf-8")) for path in paths])


def named(documents: Sequence[Mapping[str, Any]]) -> list[Run]:
    runs: list[Run] = []
    for document in documents:
        attention = document.get("machine", {}).get("attention") or NO_MODEL
        before = sum(run.name.partition(" (")[0] == attention for run in runs)
        runs.append(Run(f"{attention} ({before + 1})" if before else attention, document))
    return runs


def ratio(value: float | None, reference: float | None) -> float | None:
    return value / reference if value is not None and reference else None


def percentile(values: Sequence[float], share: float) -> float:
    """Return a percentile: the smallest value that this share of values does not exceed."""
    return sorted(values)[max(0, ceil(share * len(values)) - 1)]
