"""Responses that the server keeps, so that they can be fetched again and gone on from."""

from dovetail.responses.connection_cache import Local, Place, Room
from dovetail.responses.response import KeptResponse
from dovetail.responses.store import Kept

__all__ = ["Kept", "KeptResponse", "Local", "Place", "Room"]
