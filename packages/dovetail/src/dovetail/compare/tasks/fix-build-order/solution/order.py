"""Build order of targets."""


class CycleError(Exception):
    """Raised if targets depend on each other."""


def build_order(dependencies):
    """Return every target once, after all targets that it depends on."""
    order = []

    def visit(target, path):
        if target in path:
            raise CycleError(" -> ".join([*path[path.index(target) :], target]))
        if target in order:
            return
        for other in dependencies.get(target, ()):
            visit(other, [*path, target])
        order.append(target)

    for target in dependencies:
        visit(target, [])
    return order
