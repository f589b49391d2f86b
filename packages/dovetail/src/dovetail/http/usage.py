"""`GET /admin/usage`: the usage report of all processes that share a store."""

import time
from urllib.parse import parse_qsl

import msgspec

from dovetail.access.auth import ApiKeys, require_operator
from dovetail.http.errors import UnknownRoute
from dovetail.http.exchange import ApiExchange
from dovetail.http.routes import Route
from dovetail.http.tracker import RequestTracker
from dovetail.usage.report import build_report, format_csv, parse_query
from dovetail.usage.writer import UsageWriter
from dovetail_model import InvalidRequest

_PARAMETERS = ("by", "since", "until", "format")
_FORMATS = ("json", "csv")
_DEFAULT_BY = "tenant,key,model"


class UsageEndpoints:
    """The endpoint for operators, with an admin key or from the server's own machine."""

    def __init__(self, usage: UsageWriter | None, keys: ApiKeys) -> None:
        self._usage = usage
        self._keys = keys

    def routes(self) -> list[Route]:
        summary = "Usage by tenant, key, model, session and harness"
        return [Route("GET", "/admin/usage", self._report, summary)]

    async def _report(self, exchange: ApiExchange, tracker: RequestTracker) -> None:
        require_operator(exchange.caller, self._keys, is_local=exchange.is_local)
        if self._usage is None:
            raise UnknownRoute("Usage is not recorded: the server runs with --no-usage.")
        # An empty `by` is not the default: it requests only the total.
        pairs = parse_qsl(exchange.query_string.decode("latin-1"), keep_blank_values=True)
        query = dict(pairs)
        unknown = next((name for name in query if name not in _PARAMETERS), None)
        if unknown is not None:
            known = ", ".join(_PARAMETERS)
            raise InvalidRequest(f"unknown parameter; expected {known}", param=unknown)
        for name in query:
            if sum(one == name for one, _ in pairs) > 1:
                raise InvalidRequest("is given more than once", param=name)
        form = query.get("format", "json")
        if form not in _FORMATS:
            raise InvalidRequest("must be json or csv", param="format")
        now = time.time()
        try:
            selection = parse_query(
                query.get("by", _DEFAULT_BY), query.get("since", ""), query.get("until", ""), now
            )
        except ValueError as error:
            name, _, problem = str(error).partition(": ")
            raise InvalidRequest(problem, param=name) from error
        await self._usage.flush()
        report = await build_report(self._usage.store, selection, now)
        if form == "csv":
            await exchange.respond(200, format_csv(report).encode(), "text/csv; charset=utf-8")
        else:
            await exchange.respond(200, msgspec.json.encode(report))
