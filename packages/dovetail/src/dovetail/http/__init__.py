"""The HTTP layer: a raw ASGI application that serves a model registry."""
