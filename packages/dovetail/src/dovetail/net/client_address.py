"""Where requests come from: the address of a connection, or what a proxy that is known says of it.

Anybody can write `X-Forwarded-For`. Each proxy adds who came to it at the end, so what stands there
is believed from the end on, and only for as long as it was written by a proxy that is trusted.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from dovetail.net.exchange import Scope

_Address = IPv4Address | IPv6Address
_FORWARDED = b"x-forwarded-for"
_MAX_HOPS = 32
_MAX_HOP_CHARS = 64  # characters
_MAPPED = "::ffff:"  # how an IPv4 address looks to a server that listens on IPv6
#: An address, some proxies add a port, and then one of IPv6 stands in brackets.
_HOP = re.compile(
    r"\[([0-9a-f:.]+)\](?::[0-9]{1,5})?|([0-9.]+)(?::[0-9]{1,5})?|([0-9a-f:.]+)", re.IGNORECASE
)


class ClientAddressResolver:
    """Tells addresses. They are personal data: where they are not `told`, nobody behind has any."""

    __slots__ = ("_enabled", "_proxies")

    def __init__(self, proxies: Iterable[str] = (), *, enabled: bool = True) -> None:
        """`proxies` are addresses and networks. `ValueError` for what is neither."""
        self._proxies = [_parse_network(text) for text in proxies]
        self._enabled = enabled

    def set_client(self, scope: Scope) -> None:
        """Has the scope of a request, or of a socket, name the client that it comes from."""
        client = scope.get("client")
        if client is None:
            return
        address = self.normalize(client[0])
        if address is not None and self._proxies:
            address = self._forwarded_for(address, scope)
        scope["client"] = None if address is None else (address, client[1])

    def normalize(self, address: str) -> str | None:
        """The address of a connection, as it is told."""
        if not self._enabled:
            return None
        if ":" not in address:
            return address
        plain = address.partition("%")[0]
        return plain[len(_MAPPED) :] if plain.startswith(_MAPPED) and "." in plain else plain

    def _forwarded_for(self, connected: str, scope: Scope) -> str:
        found = _parse_hop(connected)
        if found is None or not self._is_trusted(found):
            return connected
        forwarded = b",".join(
            value for name, value in scope["headers"] if name.lower() == _FORWARDED
        )
        for hop in reversed(forwarded.decode("latin-1").rsplit(",", _MAX_HOPS)[-_MAX_HOPS:]):
            before = _parse_hop(hop.strip())
            if before is None:
                break
            found = before
            if not self._is_trusted(found):
                break
        return str(found)

    def _is_trusted(self, address: _Address) -> bool:
        return any(address in network for network in self._proxies)


def _parse_network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text.strip())
    except ValueError as error:
        raise ValueError(f"--trusted-proxy: {error}") from error


def _parse_hop(hop: str) -> _Address | None:
    """The address that a proxy has written, if it is one."""
    return _parse_address(hop) if len(hop) <= _MAX_HOP_CHARS else None


@lru_cache(1024)
def _parse_address(hop: str) -> _Address | None:
    form = _HOP.fullmatch(hop)
    if form is None or form.lastindex is None:
        return None
    try:
        address = ip_address(form[form.lastindex])
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address
