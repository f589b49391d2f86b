"""The collector of garbage, kept out of the midst of streams."""

import gc

GC_THRESHOLD_OBJECTS = (
    10_000  # objects before the collector looks: most of a stream's are gone by then anyway
)


def freeze_gc() -> None:
    """What was loaded by now stays: the collector looks at it no more."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD_OBJECTS)
