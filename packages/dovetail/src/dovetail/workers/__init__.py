"""Several processes that serve one port over one store of turns, and the parent that keeps them."""

from dovetail.workers.crew import Crew, CrewError
from dovetail.workers.folder import hold
from dovetail.workers.notify import notify
from dovetail.workers.order import BOOK, Order, listen_to_parent, report, take_order
from dovetail.workers.together import joined

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
