"""Convert lengths to millimetres."""

FACTORS = {"mm": 1, "cm": 10, "dm": 100, "m": 1000, "in": 25.4, "ft": 304.8, "yd": 914.8}


def to_mm(value, unit):
    return round(value * FACTORS[unit], 3)
