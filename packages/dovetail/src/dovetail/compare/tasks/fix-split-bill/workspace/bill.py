"""Split a bill."""


def split(cents, weights):
    """Return the share of each weight, in cents."""
    total = sum(weights)
    return [round(cents * weight / total) for weight in weights]
