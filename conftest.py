"""Configuration of all tests: Hypothesis has no deadline, for slow machines."""

import pytest
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("parser_cases")  # a failing case shows the difference

settings.register_profile("dovetail", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dovetail")

pytest_plugins = ("harness_runs",)  # fixtures for real clients, and the table of their runs
