"""The application: what lies between an agent harness and an inference engine."""

from dovetail.embedding import app

__all__ = ["app"]
