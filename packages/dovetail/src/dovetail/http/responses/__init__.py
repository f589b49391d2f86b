"""Stored responses: conversations that continue them, retrieval, and background runs."""
