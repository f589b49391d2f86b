"""What must not reach the token prefix, and who changed it if it did."""

from dovetail.prompt.arrange import arrange
from dovetail.prompt.clean import Stability
from dovetail.prompt.diagnosis import REASONS, Diagnosis, Reason, describe, headers
from dovetail.prompt.normalization import Stabilizer
from dovetail.prompt.preamble import strip_preamble
from dovetail.prompt.prefix_diagnostics import Doctor, Sighting
from dovetail.prompt.volatile_text import DEFAULT_PATTERNS, BadPattern
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
