"""Responses that the server keeps, so that they can be fetched again and gone on from."""

from dovetail.kept.kept import Kept
from dovetail.kept.local import Local, Place, Room
from dovetail.kept.response import KeptResponse

__all__ = ["Kept", "KeptResponse", "Local", "Place", "Room"]
