"""Protect the server from web pages that run in a browser on the same machine or network.

A browser sends requests of any page to any address. Without API keys, only two headers distinguish
a page from a program: `Origin`, which a page cannot change, and `Host`, which is the name of the
page if its DNS entry was changed to the server's address (DNS rebinding). Pages cannot read keys,
so a key is sufficient protection by itself.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from ipaddress import ip_address
from re import ASCII, IGNORECASE
from re import compile as compile_pattern

from dovetail_model import Forbidden

ANY = "*"
PREFLIGHT_SECONDS = 600  # how long a browser may reuse the response to a preflight request
_EXPOSED_HEADERS = "x-request-id, request-id, retry-after"
_METHODS = "GET, HEAD, POST, DELETE"

_HOST = compile_pattern(r"(\[[0-9a-f:.]+\]|[^\s\[\]:/@,]+)(?::[0-9]{1,5})?", IGNORECASE | ASCII)
_ORIGIN = compile_pattern(r"[a-z][a-z0-9+.-]*://[^\s/@,*]+", IGNORECASE | ASCII)
_HEADER_NAMES = compile_pattern(r"[\w!#$%&'*+.^`|~-]+(?:\s*,\s*[\w!#$%&'*+.^`|~-]+)*", ASCII)
_SITES_OF_OTHERS = ("cross-site", "same-site")

Headers = Mapping[str, str]  # names in lower case


class BrowserPolicy:
    """Decide which hosts and origins may use the server.

    allowed_hosts: Names that clients may use for this server, besides loopback ones;
        `*.example.com` allows subdomains, `*` all names.
    allowed_origins: Origins of web pages that may use the server; `*` allows all.
    exposed: Whether the server listens on an address that other machines can reach. They may use
        any IP address for it: DNS rebinding needs a name.
    """

    __slots__ = ("_exposed", "_hosts", "_origins")

    def __init__(
        self,
        allowed_hosts: Iterable[str] = (),
        allowed_origins: Iterable[str] = (),
        *,
        exposed: bool = False,
    ) -> None:
        """Raises `ValueError` for entries that no request could match."""
        self._hosts = frozenset(_parse_allowed_host(text) for text in allowed_hosts)
        self._origins = frozenset(_parse_allowed_origin(text) for text in allowed_origins)
        self._exposed = exposed

    def require_host(self, headers: Headers, *, has_keys: bool) -> None:
        """Raise if the request names a host that this server does not have.

        Browsers always send the header. With keys it is only checked if hosts were configured.
        It has several hosts, all of which must be allowed, if the request line has another one.
        """
        host = headers.get("host")
        if host is None or (has_keys and not self._hosts):
            return
        if all(map(self._is_allowed_host, host.split(", "))):
            return
        error = Forbidden(
            f"Requests for the host {host[:256]!r} are not accepted. Use 127.0.0.1 or localhost, "
            "or add the host to --allowed-host."
        )
        error.reason = "foreign_host"
        raise error

    def require_origin(self, headers: Headers, *, has_keys: bool) -> None:
        """Raise if a web page sent the request whose origin is not allowed.

        For requests that send no `Origin`, such as those for images, `Sec-Fetch-Site` shows it.
        """
        origin = headers.get("origin")
        if has_keys or (origin is not None and self.is_allowed_origin(origin)):
            return
        if origin is not None:
            raise forbidden_origin(origin)
        if headers.get("sec-fetch-site") in _SITES_OF_OTHERS and not _is_navigation(headers):
            raise forbidden_origin("another site")

    def require_same_origin(self, headers: Headers) -> None:
        """Raise if a page of another server sent the request. Call `require_host` before."""
        origin, host = headers.get("origin"), headers.get("host", "")
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            raise forbidden_origin(origin)
        if headers.get("sec-fetch-site") in _SITES_OF_OTHERS and not _is_navigation(headers):
            raise forbidden_origin("another site")

    def is_allowed_origin(self, origin: str) -> bool:
        return ANY in self._origins or origin.lower() in self._origins

    def cors_headers(self, headers: Headers) -> list[tuple[str, str]]:
        """Return the headers that let a page of an allowed origin read the response."""
        if not self._origins:
            return []
        vary = [("vary", "origin")]
        origin = headers.get("origin")
        if origin is None or not self.is_allowed_origin(origin):
            return vary
        return [
            ("access-control-allow-origin", origin),
            ("access-control-expose-headers", _EXPOSED_HEADERS),
            *vary,
        ]

    def preflight_headers(self, headers: Headers) -> list[tuple[str, str]]:
        """Return what a page of an allowed origin may send, in addition to `cors_headers`."""
        names = headers.get("access-control-request-headers", "").strip()
        lines = [
            ("access-control-allow-methods", _METHODS),
            ("access-control-max-age", str(PREFLIGHT_SECONDS)),
        ]
        if _HEADER_NAMES.fullmatch(names):
            lines.append(("access-control-allow-headers", names))
        if headers.get("access-control-request-private-network") == "true":
            lines.append(("access-control-allow-private-network", "true"))
        return lines

    def is_preflight(self, method: str, headers: Headers) -> bool:
        """Return whether a request is the preflight of a page of an allowed origin."""
        return (
            method == "OPTIONS"
            and "access-control-request-method" in headers
            and self.is_allowed_origin(headers.get("origin", ""))
        )

    def _is_allowed_host(self, header: str) -> bool:
        name = _parse_host(header)
        if name is None:
            return False
        if name in self._hosts or ANY in self._hosts or is_loopback(name):
            return True
        if self._exposed and _is_address(name):
            return True
        parents = name.split(".")
        return any(f"*.{'.'.join(parents[at:])}" in self._hosts for at in range(1, len(parents)))


def forbidden_origin(origin: str) -> Forbidden:
    """Return the error for a request of a web page. `origin` is what the browser sent about it."""
    error = Forbidden(
        f"Web pages may not use this server: the request was sent by a page of {origin[:256]!r}. "
        "Add its origin to --allowed-origin to allow it."
    )
    error.reason = "foreign_origin"
    return error


@lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    """Return whether a host is the name or an address of the machine itself."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _is_address(host: str) -> bool:
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def _is_navigation(headers: Headers) -> bool:
    """Return whether the user follows a link: the page that contains it cannot read the target."""
    return headers.get("sec-fetch-mode") == "navigate"


def _parse_host(text: str) -> str | None:
    """Return the host of a `Host` header without port, or None if the header is malformed."""
    match = _HOST.fullmatch(text.strip())
    return None if match is None else match[1].lower().removesuffix(".")


def _parse_allowed_host(text: str) -> str:
    host = _parse_host(text)
    if host is None or (ANY in host.removeprefix("*.") and host != ANY):
        raise ValueError(
            f"--allowed-host: must be a host name, *.DOMAIN or *, without scheme, got {text!r}"
        )
    return host


def _parse_allowed_origin(text: str) -> str:
    if text != ANY and _ORIGIN.fullmatch(text) is None:
        raise ValueError(
            f"--allowed-origin: must be SCHEME://HOST[:PORT] without a path, or *, got {text!r}"
        )
    return text.lower()
