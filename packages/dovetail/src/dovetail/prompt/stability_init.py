"""What must not reach the token prefix, and who changed it if it did."""

from dovetail.prompt.clean import Stability
from dovetail.prompt.normalization import Stabilizer
from dovetail_model import Request


def stabilize(request: Request, options: Stability | None = None) -> Request:
    """One request, nothing remembered. A server keeps a `Stabilizer`."""
    return Stabilizer(options).stabilize(request)
