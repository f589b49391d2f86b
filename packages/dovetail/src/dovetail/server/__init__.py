"""Several processes that serve one port over one store of turns, and the parent that keeps them."""

from dovetail.server.folder import hold
from dovetail.server.notify import notify
from dovetail.server.order import BOOK, Order, listen_to_parent, report, take_order
from dovetail.server.peer_responses import joined
from dovetail.server.supervisor import Crew, CrewError

__all__ = [
    "BOOK",
    "Crew",
    "CrewError",
    "Order",
    "hold",
    "joined",
    "listen_to_parent",
    "notify",
    "report",
    "take_order",
]
