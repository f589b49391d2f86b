"""The HTTP side: a raw ASGI application over the service."""

from dovetail.access.auth import Keys
from dovetail.http.app import App
from dovetail.http.options import HttpOptions

__all__ = ["App", "HttpOptions", "Keys"]
