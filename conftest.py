"""Shared by all tests: examples may take their time on a busy machine."""

from hypothesis import HealthCheck, settings

settings.register_profile("dovetail", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dovetail")

pytest_plugins = ("harness_runs",)  # places for real clients, and the table of their runs
