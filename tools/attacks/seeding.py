"""A plugin of pytest that seeds the random choices of tests, so that a run can be repeated."""

import os
import random

SEED_VARIABLE = "ATTACK_SEED"


def pytest_runtest_setup() -> None:
    random.seed(os.environ[SEED_VARIABLE])
