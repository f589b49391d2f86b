"""The collector of garbage, kept out of the midst of streams."""

import gc

YOUNG = 10_000  # objects before the collector looks: most of a stream's are gone by then anyway


def settle() -> None:
    """What was loaded by now stays: the collector looks at it no more."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG)
