"""What goes wrong with a store."""

from dovetail_model import InternalError


class StoreError(InternalError):
    """The store cannot be opened or read. The message names it."""
