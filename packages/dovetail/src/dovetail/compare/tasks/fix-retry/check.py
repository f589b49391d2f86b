"""Check attempts, delays and errors of the retry loop."""

import sys

sys.dont_write_bytecode = True
sys.pycache_prefix = "/nonexistent"  # never load bytecode from the workspace
sys.path.append(".")


def run(outcomes: list, **options) -> tuple[object, int, list[float]]:
    """Call `retry.call` with a function that raises or returns the outcomes in order."""
    from retry import call

    made, delays = [], []

    def function() -> object:
        made.append(outcome := outcomes[len(made)])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    try:
        result = call(function, sleep=delays.append, **options)
    except Exception as error:
        result = error
    return result, len(made), delays


def find_problem() -> str | None:
    errors = [OSError(number) for number in range(6)]
    result, made, delays = run(errors, attempts=4, delay=1)
    if result is not errors[3] or made != 4:
        return f"{made} attempts were made instead of 4, and {result!r} was raised"
    if delays != [1, 2, 4]:
        return f"the delays are {delays}, expected [1, 2, 4]"
    result, made, delays = run([OSError(), 0], attempts=3, delay=2)
    if (result, made, delays) != (0, 2, [2]):
        return f"a second attempt gives {result!r} after {made} calls and delays {delays}"
    result, made, delays = run([KeyError("x"), 1], attempts=3)
    if not isinstance(result, KeyError) or made != 1 or delays:
        return "an error that is not in `errors` is retried"
    result, made, _ = run([KeyError("x"), 1], attempts=2, errors=(KeyError,))
    return None if (result, made) == (1, 2) else "`errors` has no effect"


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
