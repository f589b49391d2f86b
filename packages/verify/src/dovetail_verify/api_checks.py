"""Checks that are the same question in several APIs: one row, a check for each of them."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from dovetail_verify.check import Check
from dovetail_verify.clauses import CLAUSES
from dovetail_verify.dialects import DIALECTS, Dialect
from dovetail_verify.target import TargetServer


@dataclass(frozen=True)
class ApiCheckSpec:
    """A check for every API that `clauses` names; one clause alone means all of them."""

    id: str
    clauses: str | Mapping[str, str]
    title: str
    why: str
    run: Callable[[TargetServer, Dialect], Awaitable[str]]

    def build_checks(self) -> list[Check]:
        found = []
        for dialect in DIALECTS:
            named = self.clauses
            clause = named if isinstance(named, str) else named.get(dialect.api)
            if clause is not None:
                found.append(self._build_check(dialect, clause))
        return found

    def _build_check(self, dialect: Dialect, clause: str) -> Check:
        async def run(stage: TargetServer) -> str:
            return await self.run(stage, dialect)

        return Check(f"{dialect.api}.{self.id}", CLAUSES[clause], self.title, self.why, run)


def build_api_checks(specs: Sequence[ApiCheckSpec]) -> tuple[Check, ...]:
    return tuple(check for row in specs for check in row.build_checks())
