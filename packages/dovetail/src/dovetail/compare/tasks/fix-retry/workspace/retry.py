"""Retry a function."""

import time


def call(function, attempts=3, delay=0.1, errors=(OSError,), sleep=time.sleep):
    """Call `function` until it succeeds, with increasing delays between attempts."""
    for attempt in range(attempts + 1):
        try:
            return function()
        except Exception as error:
            last = error
            sleep(delay * attempt)
    raise last
