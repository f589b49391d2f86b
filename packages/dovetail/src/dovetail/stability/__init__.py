"""What must not reach the token prefix, and who changed it if it did."""

from dovetail.stability.arrange import arrange
from dovetail.stability.clean import Stability
from dovetail.stability.diagnosis import REASONS, Diagnosis, Reason, describe, headers
from dovetail.stability.doctor import Doctor, Sighting
from dovetail.stability.preamble import strip_preamble
from dovetail.stability.stabilizer import Stabilizer
from dovetail.stability.volatile import DEFAULT_PATTERNS, BadPattern
from dovetail_model import Request

__all__ = [
    "DEFAULT_PATTERNS",
    "REASONS",
    "BadPattern",
    "Diagnosis",
    "Doctor",
    "Reason",
    "Sighting",
    "Stability",
    "Stabilizer",
    "arrange",
    "describe",
    "headers",
    "stabilize",
    "strip_preamble",
]


def stabilize(request: Request, options: Stability | None = None) -> Request:
    """One request, nothing remembered. A server keeps a `Stabilizer`."""
    return Stabilizer(options).stabilize(request)
