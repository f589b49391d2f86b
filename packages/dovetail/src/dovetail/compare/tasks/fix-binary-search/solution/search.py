"""Binary search."""


def first_index(values, wanted):
    """Return the index of the first value equal to `wanted`, or -1."""
    low, high = 0, len(values)
    while low < high:
        middle = (low + high) // 2
        if values[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low if low < len(values) and values[low] == wanted else -1
