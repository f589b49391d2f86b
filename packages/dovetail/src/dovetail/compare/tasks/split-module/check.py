"""Check where the class is defined and that both imports give it."""

import ast
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.pycache_prefix = "/nonexistent"  # never load bytecode from the workspace
sys.path.append(".")


def find_problem() -> str | None:
    tree = ast.parse(Path("shapes.py").read_text("utf-8"))
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    if classes != ["Circle", "Rectangle"]:
        return f"shapes.py defines {classes}, expected Circle and Rectangle"
    import drawing
    import shapes

    if drawing.Drawing is not shapes.Drawing or drawing.Drawing.__module__ != "drawing":
        return "Drawing of the two modules is not the same class, defined in drawing.py"
    area = drawing.Drawing().add(shapes.Rectangle(2, 3)).add(shapes.Rectangle(1, 1)).area()
    return None if area == 7 else f"the area is {area}, expected 7"


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
