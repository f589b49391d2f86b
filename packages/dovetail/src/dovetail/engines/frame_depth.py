"""Limit the nesting of the frames of engines. The decoder's limit depends on the Python version."""

import msgspec

from dovetail_protocols import exceeds_depth

MAX_FRAME_DEPTH = 512
#: Frames up to this size cannot be nested more deeply; almost all frames are smaller.
MAX_UNCHECKED_BYTES = 2 * MAX_FRAME_DEPTH


def check_frame_depth(frame: bytes) -> None:
    """Raise `msgspec.DecodeError` if a frame is nested too deeply."""
    if exceeds_depth(frame, MAX_FRAME_DEPTH):
        raise msgspec.DecodeError(f"it is nested more than {MAX_FRAME_DEPTH} levels deep")
