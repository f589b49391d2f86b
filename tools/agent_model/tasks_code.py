"""Tasks on code, numbers and services: search, run, fix, write functions, add, recover, order."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from bugs import Bug, random_bug
from kit import Call, Check, Kit, Solution, Step, Task
from names import CITIES, FIRST_NAMES, STREETS, Names
from tasks_files import distractors, expect_file, expect_text


def _modules(names: Names, count: int) -> dict[str, str]:
    """Return Python files, each with a correct function."""
    files = {}
    for path in names.paths(count, "py"):
        files[path] = random_bug(names).source(fixed=True)
    return files


def find_definition(names: Names) -> Task:
    """Find the file and line of a function."""
    files = _modules(names, names.number(3, 5))
    path = names.choice(tuple(files))
    name = re.findall(r"def (\w+)", files[path])[0]
    if sum(f"def {name}" in text for text in files.values()) != 1:
        return find_definition(names)
    extra = names.number(0, 3)
    files[path] = (
        "".join(f"{names.noun().upper()} = {names.number(1, 99)}\n" for _ in range(extra))
        + files[path]
    )
    out = names.path("txt") if names.chance(0.5) else None
    found = f"{path}:{extra + 1}"
    goal = (
        f"Write to {out} one line: the path of the file, a colon, and the number of "
        f"the line of its def."
        if out
        else "Tell me the path of the file and the line."
    )
    prompt = names.phrase(
        (
            f"Find the function `{name}`. {goal}",
            f"Where is the function {name} defined? {goal}",
            f"In which file is `def {name}`? {goal}",
            f"Search the files for the definition of {name}. {goal}",
        )
    )

    def solve(kit: Kit) -> Solution:
        yield Step(f"I search for def {name}.", (kit.search(f"def {name}"),))
        if out:
            yield Step(f"It is in {path}, line {extra + 1}.", (kit.write(out, f"{found}\n"),))
            yield Step(f"I wrote {found} to {out}.")
        else:
            yield Step(f"The function {name} is in {path}, line {extra + 1}.")

    check = expect_file(out, found) if out else expect_text(path)
    return Task("find_definition", prompt, solve, check, files)


def find_text(names: Names) -> Task:
    """Find the file that mentions a word."""
    word = names.invented() + names.invented()
    paths = names.paths(names.number(3, 5), "txt", "md")
    files = {p: "".join(f"{names.sentence()}\n" for _ in range(names.number(1, 4))) for p in paths}
    path = names.choice(paths)
    files[path] += f"The {word} is kept by {names.person()}.\n"
    prompt = names.phrase(
        (
            f"Which file mentions {word}?",
            f'Find the file that contains the word "{word}".',
            f"Search all files for {word} and tell me where it is.",
            f"In which of the files can I read about {word}?",
        )
    )

    def solve(kit: Kit) -> Solution:
        yield Step(f"I search for {word}.", (kit.search(word),))
        yield Step(f"{path} mentions {word}.")

    return Task("find_text", prompt, solve, expect_text(path), files)


def run_script(names: Names) -> Task:
    """Run a script and report its output."""
    path = names.path("py")
    word, number = names.noun(), names.number(10, 999)
    source, printed = names.choice(
        (
            (f'print("{word}", {number})\n', f"{word} {number}"),
            (f"values = [{number}, {number + 7}]\nprint(values[0])\n", str(number)),
            (f'name = "{word}"\nfor n in range(2):\n    print(name, n)\n', f"{word} 1"),
        )
    )
    prompt = names.phrase(
        (
            f"Run {path} and tell me what it prints.",
            f"What does {path} print? Run it.",
            f"Execute the script {path} and report its output.",
            f"Please start {path} with Python and tell me its output.",
        )
    )

    def solve(kit: Kit) -> Solution:
        ran = yield Step(f"I run {path}.", (kit.run(f"python3 {path}"),))
        yield Step(f"{path} prints: {' and '.join(ran[0].text.strip().splitlines())}")

    files = {path: source}
    return Task(
        "run_script", prompt, solve, expect_text(printed), files | distractors(names, files, 2)
    )


def write_and_run(names: Names) -> Task:
    """Write a script and run it."""
    path = names.path("py")
    word, number = names.noun(), names.number(2, 99)
    what, source = names.choice(
        (
            (f'prints "{word} {number}"', f'print("{word} {number}")\n'),
            (f"prints the word {word}", f'print("{word}")\n'),
            (
                f"prints the numbers from 1 to {number % 8 + 2}",
                f"for n in range(1, {number % 8 + 3}):\n    print(n)\n",
            ),
        )
    )
    prompt = names.phrase(
        (
            f"Write a Python script {path} that {what}, and run it.",
            f"Create {path}, a script that {what}. Then run it.",
            f"I need a script {path} that {what}. Run it once to check it.",
            f"Make a Python program {path} that {what} and execute it.",
        )
    )

    def check(files: Mapping[str, str], _: str) -> str | None:
        if path not in files:
            return f"{path} does not exist"
        return None if _output(files[path]) == _output(source) else f"{path} prints something else"

    def solve(kit: Kit) -> Solution:
        yield Step(f"I write {path}.", (kit.write(path, source),))
        yield Step("I run it.", (kit.run(f"python3 {path}"),))
        yield Step(f"I wrote {path} and it runs.")

    return Task("write_and_run", prompt, solve, check, distractors(names, {path: ""}, 2))


def _output(source: str) -> str:
    command = [sys.executable, "-I", "-c", source]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=5)
    except (subprocess.TimeoutExpired, ValueError):
        return "failed"
    return ran.stdout if ran.returncode == 0 else "failed"


def expect_fixed(path: str, bug: Bug) -> Check:
    """Build a check that the function returns what the assertion requires."""

    def check(files: Mapping[str, str], _: str) -> str | None:
        if path not in files:
            return f"{path} does not exist"
        printed = _output(f"{files[path]}\nprint(repr({bug.call}))\n").strip()
        return None if printed == bug.expected else f"{bug.call} is {printed}, not {bug.expected}"

    return check


def _edit_lines(bug: Bug) -> tuple[str, str]:
    """Return the text to replace: of several lines only the one that differs."""
    for wrong, right in zip(bug.wrong.splitlines(), bug.right.splitlines(), strict=True):
        if wrong != right:
            return wrong.strip(), right.strip()
    raise ValueError("the lines are equal")


def fix_bug(names: Names) -> Task:
    """Fix a function that fails its test. Without a shell, the test is only read."""
    bug = random_bug(names)
    stem = names.noun()
    path, test = f"{stem}.py", f"test_{stem}.py"
    files = {
        path: bug.source(),
        test: f"from {stem} import {bug.name}\n\nassert {bug.call} == {bug.expected}\n"
        'print("ok")\n',
    }
    if names.chance(0.3):
        files[path] = random_bug(names).source(fixed=True) + "\n\n" + files[path]
    old, new = _edit_lines(bug)
    if files[path].count(old) != 1 or files[path].count(f"def {bug.name}(") != 1:
        return fix_bug(names)
    prompt = names.phrase(
        (
            f"The test {test} fails. Fix {path}.",
            f"{test} does not pass. Find the bug in {path} and fix it.",
            f"Fix the bug in {path}: the assertion in {test} fails.",
            f"Please make {test} pass. The error is in {path}; do not change the test.",
            f"There is a bug in {path}, so {test} fails. Please repair {path}.",
        )
    )

    def solve(kit: Kit) -> Solution:
        if kit.has_shell:
            yield Step("I run the test.", (kit.run(f"python3 {test}"),))
            yield Step(f"The assertion fails. I read {path}.", (kit.read(path),))
        else:
            yield Step("I read the code and the test.", (kit.read(path), kit.read(test)))
        doc = bug.doc.removeprefix("Return ").rstrip(".")
        yield Step(f"{bug.name} must return {doc}.", (kit.edit(path, old, new),))
        if kit.has_shell:
            yield Step("I run the test again.", (kit.run(f"python3 {test}"),))
            yield Step(f"I fixed {bug.name} in {path}. The test passes.")
        else:
            yield Step(f"I fixed {bug.name} in {path}.")

    return Task("fix_bug", prompt, solve, expect_fixed(path, bug), files)


def write_function(names: Names) -> Task:
    """Write a function from its description."""
    bug = random_bug(names)
    path = names.path("py")
    source = bug.source(fixed=True)
    doc = bug.doc.removeprefix("Return ").rstrip(".")
    prompt = names.phrase(
        (
            f"Create {path} with a function {bug.name}({bug.arguments}) that returns {doc}.",
            f"Write the file {path}. It defines {bug.name}({bug.arguments}), which returns {doc}.",
            f"I need a Python function {bug.name}({bug.arguments}) in {path}. It returns {doc}.",
            (
                f"Make {path} with the function {bug.name}({bug.arguments}). The function "
                f"must return {doc}."
            ),
        )
    )

    def solve(kit: Kit) -> Solution:
        yield Step(f"I write {path}.", (kit.write(path, source),))
        yield Step(f"I wrote {bug.name} in {path}.")

    return Task(
        "write_function", prompt, solve, expect_fixed(path, bug), distractors(names, {path: ""}, 2)
    )


def add_numbers(names: Names) -> Task:
    """Add the numbers of several files."""
    count = names.number(1, 3)
    paths = names.paths(count, "txt")
    out = names.path("txt")
    if out in paths:
        return add_numbers(names)
    rows = {
        p: [(names.noun(), names.number(2, 60)) for _ in range(names.number(2, 3))] for p in paths
    }
    numbers = [number for path in paths for _, number in rows[path]]
    total, listed = (
        sum(numbers),
        " and ".join(paths) if count < 3 else f"{paths[0]}, {paths[1]} and {paths[2]}",
    )
    prompt = names.phrase(
        (
            (
                f"Each line of {listed} has a name and a number. Add up all numbers and "
                f"write the total, digits only, to {out}."
            ),
            f"Add the numbers in {listed} and write the sum to {out}.",
            f"What is the sum of all numbers in {listed}? Write it, digits only, to {out}.",
            f"Compute the total of the numbers in {listed}. Put it, only the digits, into {out}.",
        )
    )

    def solve(kit: Kit) -> Solution:
        what = f"the {count} files" if count > 1 else paths[0]
        yield Step(f"I read {what}.", tuple(map(kit.read, paths)))
        yield Step(
            f"The numbers are {', '.join(map(str, numbers))}. I add them.", (kit.add(numbers),)
        )
        yield Step(f"The total is {total}.", (kit.write(out, f"{total}\n"),))
        yield Step(f"I wrote {total} to {out}.")

    files = {p: "".join(f"{name} {number}\n" for name, number in rows[p]) for p in paths}
    return Task("add_numbers", prompt, solve, expect_file(out, str(total)), files)


def look_up_records(names: Names) -> Task:
    """Look up records of a service that is busy at first (built-in harness)."""
    count = names.number(1, 3)
    keys = [
        f"{names.choice(('part', 'item', 'unit', names.noun()))}-{names.number(1, 99)}"
        for _ in range(count)
    ]
    if len(set(keys)) < count:
        return look_up_records(names)
    field, out = names.choice(("price", "weight", "size", "count")), names.path("txt")
    prices = [names.number(10, 400) for _ in keys]
    listed = " and ".join(keys) if count < 3 else f"{keys[0]}, {keys[1]} and {keys[2]}"
    total = sum(prices)
    goal = f"the {count} numbers added up" if count > 1 else f"its {field}"
    plural = "records" if count > 1 else "record"
    prompt = names.phrase(
        (
            f"Look up the {plural} {listed}. Write {goal}, digits only, to {out}.",
            f"Use look_up for {listed} and write {goal}, digits only, to {out}.",
            (
                f"The service has the {plural} {listed}. Find the {field} and write {goal} "
                f"to {out}, digits only."
            ),
            f"Ask the service for the {plural} {listed}, and put {goal} into {out} as digits only.",
        )
    )

    def solve(kit: Kit) -> Solution:
        calls = tuple(Call("look_up", {"key": key}) for key in keys)
        yield Step(f"I look up the {plural}.", calls)
        yield Step("The service is busy. I try the same calls again.", calls)
        if count > 1:
            yield Step(
                f"The numbers are {', '.join(map(str, prices))}. I add them.", (kit.add(prices),)
            )
            yield Step(f"The total is {total}.", (kit.write(out, f"{total}\n"),))
        else:
            yield Step(f"The {field} is {total}.", (kit.write(out, f"{total}\n"),))
        yield Step(f"I wrote {total} to {out}.")

    records = {key: f"{field}: {price}" for key, price in zip(keys, prices, strict=True)}
    return Task("look_up", prompt, solve, expect_file(out, str(total)), records=records)


def place_order(names: Names) -> Task:
    """Read an order and place it (built-in harness)."""
    person, city = names.person(), names.pick(CITIES)
    street = f"{names.noun().title()} {names.choice(STREETS)} {names.number(1, 99)}"
    postcode = str(names.number(10000, 99999))
    items: list[dict[str, Any]] = []
    for _ in range(names.number(1, 2)):
        options = names.rng.sample(
            ("left", "long", "red", "blue", "short", "heavy", "small", "dark"), names.number(0, 2)
        )
        sku = f"{names.choice('ABCDEFGHKM')}{names.choice('ABCDEFGHKM')}-{names.number(1, 99)}"
        items.append({"sku": sku, "quantity": names.number(1, 9), "options": options})
    gift, shipping = names.chance(0.5), names.choice(("standard", "express"))
    parts = []
    for item in items:
        named = (
            f"with the options {' and '.join(item['options'])}"
            if item["options"]
            else "without options"
        )
        parts.append(f"{item['quantity']} of {item['sku']} {named}")
    text = (
        f"For {person}, {street}, {postcode} {city}. {', '.join(parts)}. "
        f"It is {'a gift' if gift else 'not a gift'}. Shipping: {shipping}.\n"
    )
    path = names.path("txt")
    order = {
        "customer": {
            "name": person,
            "address": {"street": street, "city": city, "postcode": postcode},
        },
        "items": items,
        "shipping": shipping,
        "gift": gift,
    }
    prompt = names.phrase(
        (
            f"Read {path} and place that order with place_order.",
            f"Place the order in {path}.",
            f"The file {path} has an order. Place it.",
            f"Please order what is written in {path}, with the tool place_order.",
        )
    )

    def check(files: Mapping[str, str], _: str) -> str | None:
        try:
            return (
                None if json.loads(files.get("order.json", "")) == order else "the order is wrong"
            )
        except ValueError:
            return "no order was placed"

    def solve(_: Kit) -> Solution:
        yield Step(f"I read {path}.", (Call("read_file", {"path": path}),))
        yield Step(f"I place the order for {person}.", (Call("place_order", order),))
        yield Step("The order is placed.")

    return Task("place_order", prompt, solve, check, {path: text})


def count_lines(names: Names) -> Task:
    """Count the lines of a file with the shell."""
    path = names.path("txt", "md", "csv")
    count = names.number(3, 15)
    text = "".join(f"{names.noun()} {names.number(1, 99)}\n" for _ in range(count))
    prompt = names.phrase(
        (
            f"How many lines does {path} have?",
            f"Count the lines of {path}.",
            f"Tell me the number of lines in the file {path}.",
            f"What is the line count of {path}?",
        )
    )

    def solve(kit: Kit) -> Solution:
        yield Step(f"I count the lines of {path}.", (kit.run(f"wc -l {path}"),))
        yield Step(f"{path} has {count} lines.")

    return Task("count_lines", prompt, solve, expect_text(str(count)), {path: text})


def list_folder(names: Names) -> Task:
    """List the files."""
    files = {p: f"{names.sentence()}\n" for p in names.paths(names.number(2, 5), "txt", "md", "py")}
    prompt = names.phrase(
        (
            "Which files are in this folder?",
            "List all files.",
            "Show me the files of this project.",
            "What files do I have here?",
        )
    )

    def solve(kit: Kit) -> Solution:
        found = yield Step("I list the files.", (kit.list(),))
        shown = [line.removeprefix("./") for line in found[0].text.splitlines()]
        yield Step("The files are:\n" + "\n".join(f"- {line}" for line in shown))

    return Task("list_folder", prompt, solve, expect_text(*files), files)


def greet(names: Names) -> Task:
    """Reply without tools."""
    person = names.pick(FIRST_NAMES)
    question, reply = names.choice(
        (
            ("Hello!", "Hello! How can I help you?"),
            (f"Hi, I am {person}.", f"Hello {person}! How can I help you?"),
            ("Thank you!", "You are welcome."),
            ("Good morning.", "Good morning! What can I do for you?"),
            ("Thanks, that is all.", "You are welcome."),
        )
    )

    def solve(_: Kit) -> Solution:
        yield Step(reply)

    return Task("small_talk", question, solve, lambda files, final: None)
