"""All checks, in the order in which they are run."""

from collections.abc import Iterable
from fnmatch import fnmatchcase

from dovetail_verify import scripted
from dovetail_verify.black_box import (
    chat,
    errors,
    messages_requests,
    messages_stream,
    metadata,
    responses_requests,
    responses_stream,
    stability,
    structured,
    transport,
)
from dovetail_verify.black_box import output as answers
from dovetail_verify.black_box import usage as accounting
from dovetail_verify.check import Check

#: The APIs in the order of a report. The last three are what all harnesses share.
APIS = ("messages", "responses", "chat", "models", "tokens", "transport")


def _sort_by_api(checks: Iterable[Check]) -> tuple[Check, ...]:
    return tuple(sorted(checks, key=lambda check: APIS.index(check.api)))


#: Checks that judge any server with any model.
BLACK_BOX_CHECKS = _sort_by_api(
    (
        *metadata.CHECKS,
        *messages_stream.CHECKS,
        *responses_stream.CHECKS,
        *chat.CHECKS,
        *answers.CHECKS,
        *messages_requests.CHECKS,
        *responses_requests.CHECKS,
        *structured.STRUCTURED_CHECKS,
        *accounting.CHECKS,
        *stability.BILLING_CHECKS,
        *errors.CHECKS,
        *transport.CHECKS,
    )
)

#: Checks of a server that has the scripted engine behind it.
SCRIPTED_CHECKS = _sort_by_api(scripted.CHECKS)


def select_checks(checks: Iterable[Check], patterns: Iterable[str]) -> list[Check]:
    """Those whose id or clause fits one of the patterns (`messages.*`, `CC-4`); all without any.

    A pattern without a star also takes everything below it: `messages.stream`.
    """
    wanted = [pattern.strip() for pattern in patterns if pattern.strip()]
    return [check for check in checks if not wanted or any(_matches(check, p) for p in wanted)]


def _matches(check: Check, pattern: str) -> bool:
    if pattern.lower() == check.clause.id.lower():
        return True
    return fnmatchcase(check.id, pattern) or check.id.startswith(f"{pattern}.")
