"""Run frontends as replicas of a Ray Serve deployment.

    serve run dovetail.server.ray:build frontends=2 engine=vllm engine_url=http://gpu1:8000 \
        store=redis://redis:6379/0

Ray starts, restarts and scales the frontends and routes requests to them. The requests of a session
go to one frontend as long as it runs, so that its caches are used. Any other frontend can continue
the session: they share a store.
"""

import pickle
from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.serve.config import RequestRouterConfig
from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter

from dovetail.net.exchange import Receive, Scope, Send
from dovetail.server.asgi_app import build_app
from dovetail.server.frontends import read_options
from dovetail.settings.config import Config
from dovetail.telemetry.log import configure_logging
from dovetail_protocols import read_session

FRONTEND_HEADER = "x-dovetail-frontend"
#: Seconds after a drain in which stores are flushed before Ray kills the process.
FLUSH_SECONDS = 15.0
#: Requests in addition to those that generate: health checks, counts, stored responses.
OTHER_REQUESTS = 256
#: Ray's proxy adds it, with the same value.
_REQUEST_ID_HEADER = b"x-request-id"


def build(arguments: Mapping[str, Any]) -> "serve.Application":
    """Build the application for `serve run` and for Serve config files.

    `arguments` are settings of `dovetail serve`, lists separated by commas, and:
    `config`: a settings file, which is read here and not by the frontends.
    `frontends`: the number of frontends, 2 by default.
    `num_cpus`: the CPUs that Ray reserves for each frontend, 1 by default.
    """
    options = read_options(arguments)
    config = options.config
    deployment = serve.deployment(
        name="Frontend",
        num_replicas=options.frontends,
        # The frontend itself queues and rejects requests, with errors that clients retry.
        max_ongoing_requests=config.max_concurrent_requests
        + config.max_queued_requests
        + OTHER_REQUESTS,
        ray_actor_options={"num_cpus": options.num_cpus},
        graceful_shutdown_timeout_s=config.drain_timeout + FLUSH_SECONDS,
        request_router_config=RequestRouterConfig(request_router_class=SessionRouter),
    )

    def create() -> FrontendApp:
        return FrontendApp(config)

    return deployment(serve.ingress(create)(_Frontend)).bind()


class _Frontend:
    """What Ray adds the ASGI application to."""


class FrontendApp:
    """The ASGI application of one frontend. Each response names its frontend in a header."""

    def __init__(self, config: Config) -> None:
        configure_logging(config.log_format, config.log_level)
        self._app = build_app(config)
        name = serve.get_replica_context().replica_id.unique_id
        self._header = (FRONTEND_HEADER.encode(), name.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_name(message: Any) -> None:
            if message["type"] == "http.response.start":
                sent = [one for one in message.get("headers", ()) if one[0] != _REQUEST_ID_HEADER]
                message = {**message, "headers": [*sent, self._header]}
            await send(message)

        await self._app(scope, receive, send_with_name if scope["type"] == "http" else send)


class SessionRouter(ConsistentHashRouter):
    """Routes the requests of a session to one frontend, by the headers of all known clients.

    Ray's own router knows one header, which is the fallback here.
    """

    def _routing_key(self, pending_request: Any) -> str | None:
        session = None if pending_request is None else _read_session(pending_request.args)
        if session is not None:
            return session
        key: str | None = super()._routing_key(pending_request)
        return key


def _read_session(arguments: Any) -> str | None:
    """Return the session of a request from Ray's proxy, None if its form is unknown."""
    try:
        (sent,) = arguments
        # Ray's proxy, in the same process, has pickled the scope for the frontend.
        scope = pickle.loads(sent).asgi_scope if isinstance(sent, bytes) else sent.asgi_scope
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope["headers"]
        }
    except (AttributeError, KeyError, TypeError, ValueError, pickle.UnpicklingError):
        return None
    return read_session(headers)
