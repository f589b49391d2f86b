"""Resolve the client address of a request: the connection's, or one reported by a trusted proxy.

Any client can send `X-Forwarded-For`. Each proxy appends the address of its own client, so the
header is read from its end, and reading stops at the first address that is not a trusted proxy.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from dovetail.net.exchange import Scope

_Address = IPv4Address | IPv6Address
_FORWARDED = b"x-forwarded-for"
_MAX_HOPS = 32
_MAX_HOP_CHARS = 64
_MAPPED = "::ffff:"  # prefix of an IPv4 client's address on a server that listens on IPv6
#: An address. Some proxies append a port, in which case an IPv6 address is in brackets.
_HOP = re.compile(
    r"\[([0-9a-f:.]+)\](?::[0-9]{1,5})?|([0-9.]+)(?::[0-9]{1,5})?|([0-9a-f:.]+)", re.IGNORECASE
)


class ClientAddressResolver:
    """Resolve client addresses.

    Addresses are personal data: with `enabled=False`, no address is passed to the application.
    """

    __slots__ = ("_enabled", "_proxies")

    def __init__(self, proxies: Iterable[str] = (), *, enabled: bool = True) -> None:
        """Trust the `proxies`, which are addresses or networks. Raises `ValueError` for others."""
        self._proxies = [_parse_network(text) for text in proxies]
        self._enabled = enabled

    def set_client(self, scope: Scope) -> None:
        """Replace the client in the scope of a request or WebSocket by the resolved client."""
        client = scope.get("client")
        if client is None:
            return
        address = self.normalize(client[0])
        if address is not None and self._proxies:
            address = self._forwarded_for(address, scope)
        scope["client"] = None if address is None else (address, client[1])

    def normalize(self, address: str) -> str | None:
        """Normalize the address of a connection. Returns None if addresses are disabled."""
        if not self._enabled:
            return None
        if ":" not in address:
            return address
        plain = address.partition("%")[0]
        return plain[len(_MAPPED) :] if plain.startswith(_MAPPED) and "." in plain else plain

    def _forwarded_for(self, peer: str, scope: Scope) -> str:
        client = _parse_hop(peer)
        if client is None or not self._is_trusted(client):
            return peer
        forwarded = b",".join(
            value for name, value in scope["headers"] if name.lower() == _FORWARDED
        )
        for hop in reversed(forwarded.decode("latin-1").rsplit(",", _MAX_HOPS)[-_MAX_HOPS:]):
            address = _parse_hop(hop.strip())
            if address is None:
                break
            client = address
            if not self._is_trusted(client):
                break
        return str(client)

    def _is_trusted(self, address: _Address) -> bool:
        return any(address in network for network in self._proxies)


def _parse_network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text.strip())
    except ValueError as error:
        raise ValueError(f"--trusted-proxy: {error}") from error


def _parse_hop(hop: str) -> _Address | None:
    """Parse an address that a proxy has added. Returns None if it is not an address."""
    return _parse_address(hop) if len(hop) <= _MAX_HOP_CHARS else None


@lru_cache(1024)
def _parse_address(hop: str) -> _Address | None:
    match = _HOP.fullmatch(hop)
    if match is None or match.lastindex is None:
        return None
    try:
        address = ip_address(match[match.lastindex])
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address
