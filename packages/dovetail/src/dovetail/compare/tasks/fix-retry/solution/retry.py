"""Retry a function."""

import time


def call(function, attempts=3, delay=0.1, errors=(OSError,), sleep=time.sleep):
    """Call `function` until it succeeds, with increasing delays between attempts."""
    for attempt in range(attempts):
        try:
            return function()
        except errors:
            if attempt == attempts - 1:
                raise
            sleep(delay * 2**attempt)
    raise ValueError("attempts must be at least 1")
