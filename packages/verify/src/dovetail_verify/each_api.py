"""One question put to all three APIs: a check for each."""

from collections.abc import Awaitable, Callable, Mapping

from dovetail_verify.check import Check, check
from dovetail_verify.target import TargetServer

GENERATION_APIS = ("messages", "responses", "chat")
ApiCheckFunction = Callable[[TargetServer, str], Awaitable[str]]


def check_each_api(
    name: str, clause: str | Mapping[str, str], *, title: str, why: str
) -> Callable[[ApiCheckFunction], tuple[Check, ...]]:
    """Makes checks of a function. Where clauses are named by API, the others have no check."""
    clauses = dict.fromkeys(GENERATION_APIS, clause) if isinstance(clause, str) else clause

    def made(ask: ApiCheckFunction) -> tuple[Check, ...]:
        return tuple(_made(ask, api, clauses[api]) for api in GENERATION_APIS if api in clauses)

    def _made(ask: ApiCheckFunction, api: str, clause: str) -> Check:
        async def run(stage: TargetServer) -> str:
            return await ask(stage, api)

        named = f"{api}.scripted.{name}"
        return check(named, clause, title=title, why=why, requires=("scripted",))(run)

    return made
