"""The HTTP side: a raw ASGI application over the service."""
