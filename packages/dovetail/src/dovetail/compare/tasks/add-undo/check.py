"""Check a sequence of edits, undos and redos."""

import sys

sys.dont_write_bytecode = True
sys.pycache_prefix = "/nonexistent"  # never load bytecode from the workspace
sys.path.append(".")


STEPS = [
    ("undo", (), False, "abc"),
    ("insert", (3, "def"), None, "abcdef"),
    ("delete", (0, 2), None, "cdef"),
    ("delete", (4, 9), None, "cdef"),
    ("insert", (1, ""), None, "cdef"),
    ("undo", (), True, "abcdef"),
    ("undo", (), True, "abc"),
    ("undo", (), False, "abc"),
    ("redo", (), True, "abcdef"),
    ("insert", (0, "x"), None, "xabcdef"),
    ("redo", (), False, "xabcdef"),
    ("undo", (), True, "abcdef"),
    ("redo", (), True, "xabcdef"),
    ("delete", (5, 10), None, "xabcd"),
]


def find_problem() -> str | None:
    from buffer import Buffer

    buffer = Buffer("abc")
    for number, (method, arguments, result, text) in enumerate(STEPS, 1):
        found = getattr(buffer, method)(*arguments)
        if found is not result or buffer.text != text:
            return (
                f"step {number}, {method}{arguments}: {found} and {buffer.text!r}, "
                f"expected {result} and {text!r}"
            )
    return None


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
