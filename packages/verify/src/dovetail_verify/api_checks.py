"""Checks that are the same question in several APIs: one row, a check for each of them."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from dovetail_verify.check import Check
from dovetail_verify.clauses import CLAUSES
from dovetail_verify.dialects import DIALECTS, Dialect
from dovetail_verify.target import Stage


@dataclass(frozen=True)
class Row:
    """A check for every API that `clauses` names; one clause alone means all of them."""

    id: str
    clauses: str | Mapping[str, str]
    title: str
    why: str
    run: Callable[[Stage, Dialect], Awaitable[str]]

    def checks(self) -> list[Check]:
        found = []
        for dialect in DIALECTS:
            named = self.clauses
            clause = named if isinstance(named, str) else named.get(dialect.api)
            if clause is not None:
                found.append(self._check(dialect, clause))
        return found

    def _check(self, dialect: Dialect, clause: str) -> Check:
        async def run(stage: Stage) -> str:
            return await self.run(stage, dialect)

        return Check(f"{dialect.api}.{self.id}", CLAUSES[clause], self.title, self.why, run)


def checks_of(rows: Sequence[Row]) -> tuple[Check, ...]:
    return tuple(check for row in rows for check in row.checks())
