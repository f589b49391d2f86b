"""Build order of targets."""


class CycleError(Exception):
    """Raised if targets depend on each other."""


def build_order(dependencies):
    """Return every target once, after all targets that it depends on."""
    order = []

    def visit(target):
        for other in dependencies[target]:
            visit(other)
        if target not in order:
            order.append(target)

    for target in dependencies:
        visit(target)
    return order
