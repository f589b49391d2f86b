"""Checks of the same property in several APIs: one definition, one check per API."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from dovetail_verify.check import Check, check
from dovetail_verify.clauses import CLAUSES
from dovetail_verify.dialects import DIALECTS, Dialect
from dovetail_verify.target import TargetServer


@dataclass(frozen=True)
class ApiCheckSpec:
    """Definition of a check for every API in `clauses`; a single clause applies to all APIs."""

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
        async def run(target: TargetServer) -> str:
            return await self.run(target, dialect)

        return Check(f"{dialect.api}.{self.id}", CLAUSES[clause], self.title, self.why, run)


def build_api_checks(specs: Sequence[ApiCheckSpec]) -> tuple[Check, ...]:
    return tuple(check for spec in specs for check in spec.build_checks())


GENERATION_APIS = ("messages", "responses", "chat")
ApiCheckFunction = Callable[[TargetServer, str], Awaitable[str]]


def check_each_api(
    name: str, clause: str | Mapping[str, str], *, title: str, why: str
) -> Callable[[ApiCheckFunction], tuple[Check, ...]]:
    """Turn a function into one check per API. A mapping of clauses limits it to those APIs."""
    clauses = dict.fromkeys(GENERATION_APIS, clause) if isinstance(clause, str) else clause

    def decorate(function: ApiCheckFunction) -> tuple[Check, ...]:
        return tuple(
            build(function, api, clauses[api]) for api in GENERATION_APIS if api in clauses
        )

    def build(function: ApiCheckFunction, api: str, clause: str) -> Check:
        async def run(target: TargetServer) -> str:
            return await function(target, api)

        check_id = f"{api}.scripted.{name}"
        return check(check_id, clause, title=title, why=why, requires=("scripted mode",))(run)

    return decorate
