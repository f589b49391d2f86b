"""Timeouts for the short requests that all clients of engine servers send."""

from dovetail.net.http_client import Timeouts

HEALTH_TIMEOUTS = Timeouts(connect=2.0, read=5.0)
DISCOVERY_TIMEOUTS = Timeouts(connect=5.0, read=15.0)  # model list, version, supported features
