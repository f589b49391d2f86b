"""Split a list into pages."""


def page_count(items, size):
    return len(items) // size


def page(items, number, size):
    start = (number - 1) * size
    return items[start : start + size]
