"""Which address leads where."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from dovetail.http.account import Account
from dovetail.http.errors import NoUpgrade, UnknownRoute, WrongMethod
from dovetail.http.exchange import Exchange
from dovetail_protocols import MESSAGES, RESPONSES, Codec

Handler = Callable[[Exchange, Account], Awaitable[None]]


@dataclass(frozen=True)
class Route:
    """An address. One that ends with a slash stands for all that begin with it.

    `needs_key` where the server has keys; `counted` where requests appear in metrics and logs.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    needs_key: bool = True
    counted: bool = True

    @property
    def endpoint(self) -> str:
        """How metrics and logs call it."""
        return self.path.removeprefix("/v1").strip("/").replace("/", "_") or "root"


class Routes:
    """All addresses."""

    __slots__ = ("_exact", "_open", "all")

    def __init__(self, routes: Iterable[Route]) -> None:
        self.all = tuple(routes)
        self._exact = {route.path: route for route in self.all}
        self._open = [route for route in self.all if route.path.endswith("/") and route.path != "/"]

    def find(self, path: str) -> Route | None:
        found = self._exact.get(path)
        if found is not None:
            return found
        return next((r for r in self._open if path.startswith(r.path) and path != r.path), None)

    def require(self, exchange: Exchange) -> Route:
        """The route of a request. Raises where there is none, or not for this method."""
        route = self.find(exchange.path)
        if route is None:
            raise UnknownRoute(f"There is nothing at {exchange.path}.{self._hint(exchange.path)}")
        allowed = ("GET", "HEAD") if route.method == "GET" else (route.method,)
        if exchange.method in allowed:
            return route
        if exchange.headers.get("upgrade", "").lower() == "websocket":
            raise NoUpgrade("WebSockets are not offered here: use HTTP.")
        raise WrongMethod(exchange.method, exchange.path, ", ".join(allowed))

    def _hint(self, path: str) -> str:
        """What was probably meant: clients add `/v1` by themselves, or do not."""
        for meant in (path.removeprefix("/v1"), f"/v1{path}"):
            if meant != path and self.find(meant) is not None:
                return f" Did you mean {meant}? Then the base URL has a /v1 too many or too few."
        return ""


def dialect(exchange: Exchange, chat: Codec) -> Codec:
    """The codec whose form an error must have: that of the address, else that of the client."""
    path = exchange.path.replace("/v1/v1/", "/v1/", 1)
    if path.startswith("/v1/messages"):
        return MESSAGES
    if path.startswith("/v1/responses"):
        return RESPONSES
    if path.startswith(("/v1/chat", "/v1/completions")):
        return chat
    return MESSAGES if "anthropic-version" in exchange.headers else chat
