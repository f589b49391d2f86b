"""The common beginning of two packed runs of token ids, found without a loop over tokens."""

from array import array

_BLOCK_BYTES = 1 << 16  # bytes compared at once


def count_common_bytes(left: bytes | bytearray, right: memoryview) -> int:
    """How many leading bytes are the same: blocks first, then halves of the one that differs.

    `startswith` compares with memcmp and copies nothing; memoryviews compare item by item.
    """
    end = min(len(left), len(right))
    begin = 0
    while begin < end:
        stop = min(begin + _BLOCK_BYTES, end)
        if not left.startswith(right[begin:stop], begin):
            break
        begin = stop
    else:
        return end
    while stop - begin > 1:
        middle = (begin + stop) // 2
        if left.startswith(right[begin:middle], begin):
            begin = middle
        else:
            stop = middle
    return begin


def count_common_ids(left: "array[int]", right: "array[int]") -> int:
    """How many leading ids are the same."""
    return count_common_bytes(left.tobytes(), memoryview(right).cast("B")) // left.itemsize
