"""Replay request traces on simulated replicas with the routing policies of the server."""
