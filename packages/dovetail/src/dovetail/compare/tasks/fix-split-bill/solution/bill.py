"""Split a bill."""


def split(cents, weights):
    """Return the share of each weight, in cents."""
    total = sum(weights)
    shares = [cents * weight // total for weight in weights]
    fractions = [cents * weight % total for weight in weights]
    order = sorted(range(len(weights)), key=lambda one: -fractions[one])
    for one in order[: cents - sum(shares)]:
        shares[one] += 1
    return shares
