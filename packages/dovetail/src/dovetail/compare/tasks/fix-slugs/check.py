"""Check slugs of titles with accents and punctuation."""

import sys

sys.dont_write_bytecode = True
sys.pycache_prefix = "/nonexistent"  # never load bytecode from the workspace
sys.path.append(".")


CASES = {
    "Hello World": "hello-world",
    "  Crème Brûlée — a recipe! ": "creme-brulee-a-recipe",
    "C++ & C#": "c-c",
    "Cafe\u0301": "cafe",
    "3.11 released": "3-11-released",
    "???": "untitled",
    "": "untitled",
    "snake_case": "snake-case",
}


def find_problem() -> str | None:
    from slug import slugify

    for title, expected in CASES.items():
        if slugify(title) != expected:
            return f"slugify({title!r}) is {slugify(title)!r}, expected {expected!r}"
    return None


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
