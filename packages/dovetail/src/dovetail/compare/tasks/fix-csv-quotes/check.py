"""Check CSV text with commas, quotes and line breaks in fields."""

import sys

sys.dont_write_bytecode = True
sys.pycache_prefix = "/nonexistent"  # never load bytecode from the workspace
sys.path.append(".")


TEXT = (
    'date,payee,amount\r\n2026-01-03,"Miller, Sons",12.50\r\n'
    '2026-01-04,"The ""Old"" Mill",7.00\r\n2026-01-05,"two\nlines",-3\r\n'
)
EXPECTED = [
    {"date": "2026-01-03", "payee": "Miller, Sons", "amount": 12.5},
    {"date": "2026-01-04", "payee": 'The "Old" Mill', "amount": 7.0},
    {"date": "2026-01-05", "payee": "two\nlines", "amount": -3.0},
]


def find_problem() -> str | None:
    from ledger import read_transactions

    rows = [dict(row) for row in read_transactions(TEXT)]
    return None if rows == EXPECTED else f"read {rows}, expected {EXPECTED}"


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
