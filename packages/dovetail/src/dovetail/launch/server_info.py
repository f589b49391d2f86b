"""Query a server for its identity and its models."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from dovetail.http.codex_catalog import apply_profile, read_profile
from dovetail.launch.plan import LaunchError, LaunchTarget
from dovetail.net.http_client import ClientRequest, Endpoint, Timeouts, send_request
from dovetail_model import DovetailError

_TIMEOUTS = Timeouts(connect=5.0, read=20.0)
#: Codex reads the catalog from this path. The server ignores the version.
_MODELS_PATH = "/v1/models?client_version=0.0.0"
_AUTH_ERROR_STATUSES = (401, 403)


class ServerNotFoundError(LaunchError):
    """Raised if no server responds at the address."""


class NotDovetailError(ServerNotFoundError):
    """Raised if the server is not Dovetail."""


@dataclass(frozen=True)
class ServerInfo:
    """A running Dovetail server, with its models in the order in which it lists them."""

    address: str
    key: str | None = field(repr=False)
    models: Sequence[Mapping[str, Any]]
    catalog: Mapping[str, Any] | None = field(repr=False)

    def has_model(self, model: str) -> bool:
        """Return whether a model is listed."""
        return any(one["id"] == model for one in self.models)

    def describe_missing_model(self, model: str) -> str:
        """Return an error message for a model that is not served, with the served models."""
        listed = ", ".join(repr(one["id"]) for one in self.models)
        return f"{self.address} does not serve {model!r}; it serves {listed}"

    def with_codex_profile(self, slug: str) -> "ServerInfo":
        """Apply a profile of the Codex installed on this machine to the model catalog."""
        if self.catalog is None:
            return self
        profile = read_profile(slug)
        return replace(
            self,
            catalog={"models": [apply_profile(one, profile) for one in self.catalog["models"]]},
        )

    def select_target(self, model: str | None, small: str | None = None) -> LaunchTarget:
        """Select a model by name, or the first one, and the model for side requests."""
        for name in (model, small):
            if name is not None and not self.has_model(name):
                raise LaunchError(self.describe_missing_model(name))
        found = next(one for one in self.models if model is None or one["id"] == model)
        window = found.get("context_length")
        return LaunchTarget(self.address, found["id"], self.key, window, self.catalog, small)


def fetch_server_info(url: str, key: str | None) -> ServerInfo:
    """Query a server. Raises LaunchError if it does not respond or is not Dovetail."""
    address = url.rstrip("/").removesuffix("/v1")
    try:
        endpoint = Endpoint.parse(address, {"authorization": f"Bearer {key}"} if key else {})
        return asyncio.run(_fetch_server_info(endpoint, address, key))
    except ValueError as error:
        raise LaunchError(f"--url: {error}") from error
    except (DovetailError, OSError) as error:
        raise ServerNotFoundError(f"cannot reach a server at {address}: {error}") from error


def find_server(addresses: Sequence[str], key: str | None) -> tuple[ServerInfo | None, list[str]]:
    """Find the first address with a Dovetail server. Also return messages about other servers.

    Raises LaunchError for a Dovetail server that requires another key.
    """
    others: list[str] = []
    for address in addresses:
        try:
            return fetch_server_info(address, key), others
        except NotDovetailError as error:
            others.append(str(error))
        except ServerNotFoundError:
            pass
    return None, others


async def _fetch_server_info(endpoint: Endpoint, address: str, key: str | None) -> ServerInfo:
    status, body = await _get_json(endpoint, "/")
    if status != 200 or body.get("name") != "dovetail":
        raise NotDovetailError(
            f"the server at {address} is not a Dovetail server. To use it as an engine, pass "
            f"--engine vllm --engine-url {address} (or sglang, dynamo, openai)"
        )
    status, body = await _get_json(endpoint, _MODELS_PATH)
    if status in _AUTH_ERROR_STATUSES:
        problem = "rejects the API key" if key else "requires an API key"
        raise LaunchError(f"{address} {problem}; set DOVETAIL_API_KEY or --api-key")
    models = body.get("data")
    if status != 200 or not models:
        raise LaunchError(f"{address} does not list its models (HTTP {status})")
    catalog = {"models": body["models"]} if body.get("models") else None
    return ServerInfo(address, key, models, catalog)


async def _get_json(endpoint: Endpoint, path: str) -> tuple[int, dict[str, Any]]:
    async with send_request(endpoint, ClientRequest("GET", path, timeouts=_TIMEOUTS)) as reply:
        body = await reply.read()
    try:
        return reply.status, msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        return reply.status, {}
