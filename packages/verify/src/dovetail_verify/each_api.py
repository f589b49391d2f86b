"""One question put to all three APIs: a check for each."""

from collections.abc import Awaitable, Callable, Mapping

from dovetail_verify.check import Check, check
from dovetail_verify.target import Stage

APIS = ("messages", "responses", "chat")
Ask = Callable[[Stage, str], Awaitable[str]]


def each_api(
    name: str, clause: str | Mapping[str, str], *, title: str, why: str
) -> Callable[[Ask], tuple[Check, ...]]:
    """Makes checks of a function. Where clauses are named by API, the others have no check."""
    clauses = dict.fromkeys(APIS, clause) if isinstance(clause, str) else clause

    def made(ask: Ask) -> tuple[Check, ...]:
        return tuple(_made(ask, api, clauses[api]) for api in APIS if api in clauses)

    def _made(ask: Ask, api: str, clause: str) -> Check:
        async def run(stage: Stage) -> str:
            return await ask(stage, api)

        named = f"{api}.scripted.{name}"
        return check(named, clause, title=title, why=why, needs=("scripted",))(run)

    return made
