"""Timeouts of the short requests that the clients of engine servers have in common."""

from dovetail.net.http_client import Timeouts

HEALTH_TIMEOUTS = Timeouts(connect=2.0, read=5.0)
DISCOVERY_TIMEOUTS = Timeouts(connect=5.0, read=15.0)  # models, version, supported features
