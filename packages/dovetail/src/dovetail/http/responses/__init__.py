"""Stored responses: continuation, retrieval and background runs."""
