"""Add and remove replicas while the server runs: by a request, a watched file or DNS.

Each source has a list of URLs. A change of its list adds and removes replicas; a source that cannot
be read, or that has no valid URL, keeps its last list.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from dovetail.engines.engine import TokenEngine
from dovetail.net.http_client import Endpoint
from dovetail.routing.pool import ReplicaPool
from dovetail.routing.replica import Replica

POLL_INTERVAL_SECONDS = 5.0
MAX_FILE_BYTES = 1 << 20
MAX_REPLICAS = 1024

#: Creates the engine of a URL. Raises if the URL is invalid.
EngineFactory = Callable[[str], TokenEngine]

_log = logging.getLogger(__name__)


class SourceError(ValueError):
    """A source of URLs that cannot be read or has an invalid URL."""


class UrlSource(Protocol):
    """A list of URLs that changes while the server runs."""

    name: str

    def read(self) -> tuple[str, ...]:
        """Return the current URLs. It may block. Raises `SourceError`."""


class UrlFile:
    """A file with one URL per line. `#` starts a comment."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.name = str(path)

    def read(self) -> tuple[str, ...]:
        try:
            with self._path.open("rb") as file:
                content = file.read(MAX_FILE_BYTES + 1)
            text = content.decode()
        except (OSError, UnicodeDecodeError) as error:
            raise SourceError(f"{self._path} cannot be read: {error}") from error
        if len(content) > MAX_FILE_BYTES:  # the last URL may be truncated
            raise SourceError(f"{self._path} must have at most {MAX_FILE_BYTES:,} bytes")
        lines = (line.partition("#")[0].strip() for line in text.splitlines())
        urls = tuple(dict.fromkeys(normalize_url(line) for line in lines if line))
        if not urls:
            raise SourceError(f"{self._path} contains no URL")
        return urls


class DnsName:
    """A URL whose host name has an address for each replica, as a headless service has."""

    def __init__(self, url: str) -> None:
        self.name = normalize_url(url)

    def read(self) -> tuple[str, ...]:
        endpoint, parts = Endpoint.parse(self.name), urlsplit(self.name)
        try:
            found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise SourceError(f"{endpoint.host} cannot be resolved: {error}") from error
        addresses = sorted({str(address[0]) for *_, address in found})
        hosts = (f"[{one}]" if ":" in one else one for one in addresses)
        return tuple(f"{parts.scheme}://{host}:{endpoint.port}{endpoint.base}" for host in hosts)


def normalize_url(url: str) -> str:
    """Return a URL in the form in which URLs are compared. Raises `SourceError`."""
    # Users also paste the base URL of an SDK, which ends with /v1.
    short = url.strip().rstrip("/").removesuffix("/v1")
    if not short.isprintable() or " " in short:
        raise SourceError(f"a URL must not contain spaces and control characters, got {short!r}")
    try:
        Endpoint.parse(short)
    except ValueError as error:
        raise SourceError(str(error)) from error
    return short


class ReplicaMembership:
    """Changes the replicas of one pool.

    `sources`: the sources and the URLs that each of them had when the pool was created.
    `is_shared`: other processes serve the same model with pools of their own, so that only sources
    that all of them read may change the replicas.
    `fixed`: URLs that the settings name. They stay when a source that also has them drops them.
    """

    def __init__(
        self,
        pool: ReplicaPool,
        create_engine: EngineFactory,
        sources: Mapping[UrlSource, Sequence[str]],
        *,
        is_shared: bool = False,
        fixed: Collection[str] = (),
        interval_seconds: float = POLL_INTERVAL_SECONDS,
    ) -> None:
        self.is_shared = is_shared
        self._pool = pool
        self._create_engine = create_engine
        self._fixed = frozenset(fixed)
        self._urls = {source: frozenset(urls) for source, urls in sources.items()}
        self._errors: dict[UrlSource, str] = {}
        self._interval_seconds = interval_seconds
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to watch the sources."""
        if self._urls and self._task is None:
            self._task = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def find(self, url: str) -> Replica | None:
        """Return the replica with a URL, however its host and its default port are written."""
        address = str(Endpoint.parse(url))
        for one in self._pool.replicas:
            if one.url is not None and str(Endpoint.parse(one.url)) == address:
                return one
        return None

    async def add(self, url: str) -> Replica:
        """Add a replica. One that exists is returned. Raises `ValueError` with the reason."""
        url = normalize_url(url)
        async with self._lock:
            existing = self.find(url)
            if existing is not None:
                return existing
            if len(self._pool.replicas) >= MAX_REPLICAS:
                raise SourceError(f"a model can have at most {MAX_REPLICAS} replicas")
            return await self._pool.add_replica(self._create_engine(url), url)

    async def remove(self, url: str) -> Replica:
        """Remove a replica after its active requests. Raises `ValueError` with the reason."""
        url = normalize_url(url)
        async with self._lock:
            replica = self.find(url)
            if replica is None:
                known = ", ".join(str(one.url) for one in self._pool.replicas)
                raise SourceError(f"unknown replica {url}; replicas: {known}")
            self._pool.remove_replica(replica)
            return replica

    async def refresh(self) -> None:
        """Read all sources once and apply their changes."""
        for source in self._urls:
            try:
                urls = frozenset(await asyncio.to_thread(source.read))
            except SourceError as error:
                self._report(source, str(error))
                continue
            await self._apply(source, urls)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._interval_seconds)
            try:
                await self.refresh()
            except Exception as error:  # the next refresh may succeed
                fields = {"reason": f"{type(error).__name__}: {error}"}
                _log.error("replica_sources_failed", extra={"fields": fields})

    async def _apply(self, source: UrlSource, urls: frozenset[str]) -> None:
        """Add new URLs before old ones are removed, so that a replica is left.

        What fails is tried again at the next refresh.
        """
        before = self._urls[source]
        errors: dict[str, Exception] = {}
        for url in sorted(urls - before):
            try:
                await self.add(url)
            except Exception as error:
                errors[url] = error
        others = (self._urls[one] for one in self._urls if one is not source)
        elsewhere = self._fixed.union(*others)
        for url in sorted(before - urls - elsewhere):
            if self.find(url) is None:
                continue  # already removed by a request
            try:
                await self.remove(url)
            except ValueError as error:
                errors[url] = error
        self._urls[source] = urls.symmetric_difference(errors)
        self._report(source, "; ".join(f"{url}: {error}" for url, error in errors.items()))

    def _report(self, source: UrlSource, error: str) -> None:
        """Log an error of a source once, until it changes."""
        if error and error != self._errors.get(source):
            fields = {"source": source.name, "reason": error}
            _log.error("replica_source_rejected", extra={"fields": fields})
        self._errors[source] = error
