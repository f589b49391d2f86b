"""Small Python functions with a bug, its fix, and an assertion that the bug fails."""

from dataclasses import dataclass

from names import Names


@dataclass(frozen=True)
class Bug:
    """A function. `wrong` and `right` are the lines that differ."""

    name: str
    arguments: str
    doc: str
    wrong: str
    right: str
    call: str
    expected: str
    lead: tuple[str, ...] = ()

    def source(self, fixed: bool = False) -> str:
        body = [*self.lead, self.right if fixed else self.wrong]
        lines = "".join(f"    {line}\n" for line in body)
        return f'def {self.name}({self.arguments}):\n    """{self.doc}"""\n{lines}'


def random_bug(names: Names) -> Bug:
    """Return a random function. The docstring states what is right."""
    make = names.choice((_binary, _binary, _constant, _index, _compare, _aggregate, _string, _loop))
    return make(names)


_OPERATORS = {
    "+": ("the sum of {0} and {1}", "{0} plus {1}"),
    "-": ("{0} minus {1}", "the difference of {0} and {1}"),
    "*": ("the product of {0} and {1}", "{0} times {1}"),
}


def _binary(names: Names) -> Bug:
    a, b = (
        names.nouns(2)
        if names.chance(0.4)
        else names.choice((["a", "b"], ["x", "y"], ["left", "right"], ["width", "height"]))
    )
    sign = names.choice(tuple(_OPERATORS))
    wrong = names.choice([other for other in _OPERATORS if other != sign])
    doc = names.choice(_OPERATORS[sign]).format(a, b)
    first, second = names.number(6, 20), names.number(3, 5)
    value = {"+": first + second, "-": first - second, "*": first * second}[sign]
    name = names.identifier()
    return Bug(
        name,
        f"{a}, {b}",
        f"Return {doc}.",
        f"return {a} {wrong} {b}",
        f"return {a} {sign} {b}",
        f"{name}({first}, {second})",
        str(value),
    )


def _constant(names: Names) -> Bug:
    value = names.choice(("value", "amount", "number", "count", "price", names.noun()))
    right, wrong = names.rng.sample(range(2, 13), 2)
    sign, word = names.choice((("*", "times"), ("+", "plus"), ("-", "minus")))
    given = names.number(13, 40)
    result = {"*": given * right, "+": given + right, "-": given - right}[sign]
    name = names.identifier()
    return Bug(
        name,
        value,
        f"Return {value} {word} {right}.",
        f"return {value} {sign} {wrong}",
        f"return {value} {sign} {right}",
        f"{name}({given})",
        str(result),
    )


def _index(names: Names) -> Bug:
    items = names.choice(("items", "values", "words", "rows", f"{names.noun()}s"))
    ways = {"first": "[0]", "last": "[-1]", "second": "[1]"}
    right = names.choice(tuple(ways))
    wrong = names.choice([way for way in ways if way != right])
    given = names.rng.sample(range(1, 60), 4)
    value = {"first": given[0], "last": given[-1], "second": given[1]}[right]
    name = names.identifier()
    return Bug(
        name,
        items,
        f"Return the {right} of the {items}.",
        f"return {items}{ways[wrong]}",
        f"return {items}{ways[right]}",
        f"{name}({given})",
        str(value),
    )


def _compare(names: Names) -> Bug:
    value, limit = (
        names.choice(("value", "age", "size", "score", names.noun())),
        names.number(5, 90),
    )
    signs = {"greater than": ">", "less than": "<", "at least": ">=", "at most": "<="}
    right = names.choice(tuple(signs))
    opposite = {">": "<", "<": ">", ">=": "<=", "<=": ">="}[signs[right]]
    given = limit + 3
    expected = signs[right] in (">", ">=")
    name = f"is_{names.identifier()}"
    return Bug(
        name,
        value,
        f"Return whether {value} is {right} {limit}.",
        f"return {value} {opposite} {limit}",
        f"return {value} {signs[right]} {limit}",
        f"{name}({given})",
        str(expected),
    )


def _aggregate(names: Names) -> Bug:
    items = names.choice(("items", "values", "numbers", "scores", f"{names.noun()}s"))
    ways = {"largest": "max", "smallest": "min", "sum": "sum", "number": "len"}
    right = names.choice(tuple(ways))
    wrong = names.choice([way for way in ways if way != right])
    given = names.rng.sample(range(5, 60), names.number(3, 4))
    results = {"largest": max(given), "smallest": min(given), "sum": sum(given)}
    value = results.get(right, len(given))
    doc = f"Return the {right} of the {items}."
    name = names.identifier()
    return Bug(
        name,
        items,
        doc,
        f"return {ways[wrong]}({items})",
        f"return {ways[right]}({items})",
        f"{name}({given})",
        str(value),
    )


def _string(names: Names) -> Bug:
    text = names.choice(("text", "name", "word", "title", names.noun()))
    ways = {
        "in upper case": "upper",
        "in lower case": "lower",
        "with a capital first letter": "capitalize",
    }
    right = names.choice(tuple(ways))
    wrong = names.choice([way for way in ways if way != right])
    given = names.noun()
    given = given[0].upper() + given[1:-1] + given[-1].upper()
    value = getattr(given, ways[right])()
    name = names.identifier()
    return Bug(
        name,
        text,
        f"Return {text} {right}.",
        f"return {text}.{ways[wrong]}()",
        f"return {text}.{ways[right]}()",
        f"{name}({given!r})",
        repr(value),
    )


def _loop(names: Names) -> Bug:
    items, total = names.choice(("items", "numbers", "prices")), names.choice(("total", "result"))
    sign, start, word = names.choice((("+=", "0", "sum"), ("*=", "1", "product")))
    wrong = {"+=": "-=", "*=": "+="}[sign]
    given = names.rng.sample(range(2, 9), 3)
    value = sum(given) if sign == "+=" else given[0] * given[1] * given[2]
    name = names.identifier()
    body = f"for item in {items}:\n        {total} {{}} item\n    return {total}"
    return Bug(
        name,
        items,
        f"Return the {word} of the {items}.",
        body.format(wrong),
        body.format(sign),
        f"{name}({given})",
        str(value),
        (f"{total} = {start}",),
    )
