"""Stored responses of the Responses API, which clients retrieve and continue."""
