"""The addresses at which replicas publish the events of their KV caches."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from dovetail.engines.kv_cache import KvCacheInfo
from dovetail.net.http_client import Endpoint

AUTO = "auto"
#: In place of the host: that of the replica's URL.
REPLICA_HOST = "*"
MAX_PROBE_SECONDS = 3.0

_SIGNATURE_BYTES = 10  # the start of the greeting that a ZMQ socket sends to every peer


@dataclass(frozen=True, slots=True)
class KvEventAddress:
    """Where a replica publishes its events, and where they can be requested again."""

    events: str
    replay: str | None = None


class KvEventAddresses:
    """The addresses of all replicas, from the settings.

    `events`, `replay`: values of `--kv-events` and `--kv-events-replay`: `tcp://HOST:PORT` for all
    replicas, where the host `*` is that of each replica; `URL=tcp://HOST:PORT` for one replica; or
    `auto` if the server reports them. Raises `ValueError` for an invalid value.
    """

    def __init__(self, events: Sequence[str], replay: Sequence[str] = ()) -> None:
        self._events = _parse("--kv-events", events)
        self._replay = _parse("--kv-events-replay", replay)
        self.is_auto = AUTO in self._events.values()

    def resolve(self, url: str, info: KvCacheInfo) -> KvEventAddress:
        """Return the addresses of a replica. Raises `ValueError` if it has none."""
        host = Endpoint.parse(url).host
        events = _resolve(self._events, url, host, info.events_port)
        if events is None:
            if self.is_auto:
                raise ValueError(
                    "its server reports no KV events; start it with --kv-events-config"
                )
            known = ", ".join(one for one in self._events if one is not None)
            raise ValueError(f"--kv-events has no address for it, only for {known}")
        replay = _resolve(self._replay, url, host, info.replay_port)
        if replay is None and self.is_auto:
            replay = _at_port(host, info.replay_port)
        return KvEventAddress(events, replay)


def _parse(flag: str, values: Sequence[str]) -> dict[str | None, str]:
    """Return the address of each URL; None stands for all other replicas."""
    found: dict[str | None, str] = {}
    for value in values:
        url, equals, address = value.rpartition("=")
        key = url.strip().rstrip("/").removesuffix("/v1") if equals else None
        if key == "":
            raise ValueError(f"{flag} must have a URL before '=', got {value!r}")
        if key in found:
            raise ValueError(f"{flag} has two addresses for {key or 'all replicas'}")
        if address != AUTO:
            _check_address(flag, address)
        found[key] = address
    return found


def _check_address(flag: str, address: str) -> None:
    with suppress(ValueError):  # a port out of range, or a bracket without its counterpart
        parts = urlsplit(address)
        if parts.scheme == "tcp" and parts.hostname and parts.port and not parts.path:
            return
    raise ValueError(
        f"{flag} must be tcp://HOST:PORT, tcp://*:PORT, URL=tcp://HOST:PORT or {AUTO}, "
        f"got {address!r}"
    )


def _resolve(
    addresses: Mapping[str | None, str], url: str, host: str, reported_port: int | None
) -> str | None:
    address = addresses.get(url) or addresses.get(None)
    if address == AUTO:
        return _at_port(host, reported_port)
    if address is None or urlsplit(address).hostname != REPLICA_HOST:
        return address
    return _at_port(host, urlsplit(address).port)


def _at_port(host: str, port: int | None) -> str | None:
    if port is None:
        return None
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


async def probe_publisher(address: str) -> str | None:
    """Connect to an address. Return why it is not a ZMQ socket, or None if it is one."""
    parts = urlsplit(address)
    try:
        async with asyncio.timeout(MAX_PROBE_SECONDS):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            try:
                signature = await reader.readexactly(_SIGNATURE_BYTES)
            finally:
                writer.close()
    except TimeoutError:
        return f"{address} does not respond within {MAX_PROBE_SECONDS:g} s"
    except (OSError, EOFError) as error:
        return f"{address} is not reachable: {error}"
    if signature[0] != 0xFF or signature[-1] != 0x7F:
        return f"{address} is not a ZMQ socket"
    return None
