"""Configuration of all tests: Hypothesis has no deadline, for slow machines."""

from hypothesis import HealthCheck, settings

settings.register_profile("dovetail", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dovetail")

pytest_plugins = ("harness_runs",)  # fixtures for real clients, and the table of their runs
