"""Split a list into pages."""


def page_count(items, size):
    return max(1, -(-len(items) // size))


def page(items, number, size):
    if not 1 <= number <= page_count(items, size):
        raise IndexError(f"page {number} does not exist")
    start = (number - 1) * size
    return items[start : start + size]
