"""Check conversions and print a line for each."""

import sys

from units_table import to_mm

INCHES = {"in": 1, "ft": 12, "yd": 36}
METRIC = {"mm": 1, "cm": 10, "dm": 100, "m": 1000}


def expected_mm(value, unit):
    if unit in INCHES:
        return round(value * INCHES[unit] * 25.4, 3)
    return round(value * METRIC[unit], 3)


def main():
    units = ["mm", "cm", "m", "in", "dm", "ft"]
    failed = 0
    for number in range(3000):
        unit = "yd" if number % 1000 == 503 else units[number % len(units)]
        value = (number * 37) % 211 + 0.5
        found, expected = to_mm(value, unit), expected_mm(value, unit)
        result = "ok" if found == expected else f"FAILED, expected {expected}"
        failed += found != expected
        print(f"case {number:04d}: {value} {unit} = {found} mm ... {result}")
    print(f"3000 cases, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
