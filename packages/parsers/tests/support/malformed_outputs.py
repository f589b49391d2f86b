"""The slips that models make, made for every family of a shape, with what must be recovered.

`make_slips()` returns one `Slip` per kind of slip, family and variant. The expected blocks are
written as `("text", ...)`, `("reasoning", ...)`, `("call", name, arguments)` and, for a call that
must not run, `("cut", name)`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from parser_cases import TOOLS
from wire_shapes import WIRES, Shape, Wire

PARIS: tuple[Any, ...] = ("call", "get_weather", {"city": "Paris"})
AFTER: tuple[Any, ...] = ("text", "After.")
PATCH = '*** Begin Patch\n*** Update File: a.py\n-x = {1}\n+x = "2"\n*** End Patch'
JSON_SHAPES = (Shape.JSON_OBJECT, Shape.JSON_LIST)
#: Formats in which calls may be written without any marker: the wrapper is optional.
UNMARKED = {"llama3_json", "xlam", "default", "llama4_pythonic", "pythonic", "minicpm5"}
#: Formats of messages with headers, whose markers frame all output.
MESSAGES = {"harmony", "inkling", "muse_glimmer"}
#: Formats with tags in which the name comes before the first tag of a call.
NAMED_FIRST = {"glm47", "hy_v3"}
#: One closer encloses a value, so text behind it may be part of the value.
ONE_CLOSER = {"glm47", "minicpm5"}


@dataclass(frozen=True)
class Slip:
    kind: str
    family: str
    shape: Shape
    variant: str
    text: str
    blocks: tuple[tuple[Any, ...], ...]
    tools: list[dict[str, Any]] = field(default_factory=lambda: TOOLS, repr=False)

    @property
    def id(self) -> str:
        return f"{self.kind}-{self.family}-{self.shape.name.lower()}-{self.variant}"


def _slip(kind: str, wire: Wire, variant: str, text: str, *blocks: tuple[Any, ...]) -> Slip:
    before, after = wire.in_message
    return Slip(kind, wire.family, wire.shape, variant, before + text + after, blocks)


def make_slips() -> list[Slip]:
    return [slip for wire in WIRES for make in _GENERATORS for slip in make(wire)]


def _closing_tag(wire: Wire) -> Iterator[Slip]:
    """A closing tag that the format does not have, or behind the list form of calls."""
    kind = "closing_tag"
    if not wire.closer and (mirrored := _mirror(wire.opener)):
        yield _slip(kind, wire, "end", wire.text + mirrored, PARIS)
        yield _slip(kind, wire, "text", f"{wire.text}{mirrored}\nAfter.", PARIS, AFTER)
        yield _slip(kind, wire, "line", f"{wire.text}\n{mirrored}\n\nAfter.", PARIS, AFTER)
        again = f"{wire.text}{mirrored}{wire.text}{mirrored}"
        yield _slip(kind, wire, "again", again, PARIS, PARIS)
    if wire.closer and wire.shape is Shape.JSON_OBJECT:
        calls = f"{wire.opener}[{wire.call}, {wire.call}]{wire.closer}"
        yield _slip(kind, wire, "list", f"{calls}\nAfter.", PARIS, PARIS, AFTER)


def _mirror(opener: str) -> str:
    found = re.fullmatch(r"(<\|?|\[)(\w+)(\|?>|\])\s*", opener)
    return f"{found[1]}/{found[2]}{found[3]}" if found else ""


def _missing_value_closer(wire: Wire) -> Iterator[Slip]:
    if not wire.value_closer:
        return
    kind = "missing_value_closer"
    head, _, tail = wire.text.rpartition(wire.value_closer)
    yield _slip(kind, wire, "end", head + tail, PARIS)
    if wire.family != "muse_glimmer":  # a message has one section of calls
        yield _slip(kind, wire, "again", f"{head}{tail}\n{wire.text}", PARIS, PARIS)
        yield _slip(kind, wire, "twice", f"{head}{tail}{head}{tail}", PARIS, PARIS)
    if wire.family not in ONE_CLOSER:
        yield _slip(kind, wire, "text", f"{head}{tail}\n\nAfter.", PARIS, AFTER)
        yield _slip(kind, wire, "glued_text", f"{head}{tail}After.", PARIS, AFTER)
        if wire.family not in MESSAGES:
            more = f"{head}{tail}\nAfter.\n{wire.text}"
            yield _slip(kind, wire, "text_and_call", more, PARIS, AFTER, PARIS)
    for variant, value in _values_with_closers(tail, wire.value_closer):
        call = ("call", "get_weather", {"city": value})
        yield _slip("closer_in_a_value", wire, variant, wire.text.replace("Paris", value), call)


def _values_with_closers(tail: str, own: str) -> Iterator[tuple[str, str]]:
    """Values that mention closers and must stay whole."""
    first = re.match(r"\s*(\}|.*?(?:<\|sep\|>|(?<!sep\|)(?<!\[)>))", tail)
    assert first
    yield "first", f"a {first[1]} b"
    if own[:2] == "</" or "/" in own or "close" in own:  # not the quotes of a braced notation
        yield "own", f"a {own.strip()} b"
    yield "quoted", f'ends with "{tail.strip()}" here'
    yield "ticks", f"ends with `{tail.strip()}`."
    yield "near", f"a {tail.strip()[:-1]} b" * 3
    if own[:2] == "</" or "/" in own or "close" in own:
        yield "lines", f"It ends with\n{tail.strip()}\nas shown.\n{tail.strip()}\nSo."


def _missing_opener(wire: Wire) -> Iterator[Slip]:
    kind = "missing_opener"
    text = wire.call + wire.closer
    if not wire.opener or wire.family in UNMARKED or wire.family == "solar":
        return  # the id before a name of Solar is free text
    if wire.shape in JSON_SHAPES and not wire.closer:
        # plain JSON without any marker is an ordinary response
        yield _slip(kind, wire, "unmarked", text, ("text", text))
        return
    yield _slip(kind, wire, "start", text, PARIS)
    yield _slip(kind, wire, "text_behind", f"{text}\nAfter.", PARIS, AFTER)
    if wire.family not in ("harmony", "muse_glimmer"):  # messages: a call never starts in text
        yield _slip(kind, wire, "line", f"I look.\n{text}", ("text", "I look."), PARIS)
        yield _slip(kind, wire, "again", f"{wire.text}\n{text}", PARIS, PARIS)
        for variant, fenced in (
            ("fence", "```py\nx\n```"),
            ("indented", "So:\n  ~~~~\n~~~\n  ~~~~~"),
            ("quoted", "> ```\n> x\n> ```"),
        ):
            behind = f"{fenced}\n{text}"
            yield _slip(kind, wire, f"behind_{variant}", behind, ("text", fenced), PARIS)
    starts_with_marker = wire.shape in (Shape.TAGS, Shape.TREE) and wire.family not in NAMED_FIRST
    if not starts_with_marker and wire.family != "harmony":
        for variant, prose in _mentions(text):
            yield _slip("mentioned_call", wire, variant, prose, ("text", prose))
        if wire.family not in MESSAGES:
            yield from _not_calls(wire)


def _not_calls(wire: Wire) -> Iterator[Slip]:
    """Complete calls without their wrapper that are quoted, or that name no offered tool."""
    kind, text = "mentioned_call", wire.call + wire.closer
    for fence in ("```", "~~~", "````"):
        quoted = f"Like this:\n{fence}\n{text}\n{fence}\nDone."
        yield _slip(kind, wire, f"fence{fence}", quoted, ("text", quoted))
    for variant, quoted in _quoted_calls(text):
        yield _slip(kind, wire, variant, quoted, ("text", quoted))
    opened = f"```json\n{text}\n```"
    yield _slip(kind, wire, "fence_at_the_start", opened, ("text", opened))
    for variant, prose in (
        ("rest_of_line", f"{wire.call.strip()}. So it is written."),
        ("list_item", f"- {wire.call.strip()}"),
        ("indented", f"So:\n    {wire.call.strip()}"),
    ):
        if wire.family != "deepseek_v3":  # its fence ends a call
            yield _slip(kind, wire, variant, prose, ("text", prose))
    other = wire.call.replace("get_weather", "launch").strip()
    yield _slip(kind, wire, "other_tool", other, ("text", other))
    alone = wire.call.strip()
    yield replace(_slip(kind, wire, "no_tools", alone, ("text", alone)), tools=[])


def _quoted_calls(text: str) -> Iterator[tuple[str, str]]:
    yield "fence_in_a_fence", f"So:\n````\n```\nx\n```\n{text}\n````"
    yield "tildes_in_tildes", f"So:\n~~~~\n~~~\nx\n~~~\n{text}\n~~~~"
    yield "other_fence_inside", f"So:\n```\n~~~\n{text}\n~~~\n```"
    yield "opener_inside", f"So:\n```\n```json\n{text}\n```"
    yield "long_fence", f"So:\n{'`' * 12}\n```\n{text}\n```\n{'`' * 12}"
    yield "indented_fence", f"1. So:\n   ```json\n{text}\n   ```"
    yield "tab_before_fence", f"So:\n\t~~~\n{text}\n\t~~~"
    yield "quoted_fence", f"So:\n> ```\n{text}\n> ```\nDone."
    yield "quoted_at_the_start", f"> ```\n{text}\n> ```"
    yield "indented_at_the_start", f"  ~~~~\n~~~\n{text}\n  ~~~~"


def _mentions(text: str) -> Iterator[tuple[str, str]]:
    """Text that mentions a call without its wrapper."""
    head = text.split("Paris")[0]
    yield "prose", f"It writes {head}, then the value."
    yield "ticks", f"It writes `{head}`."
    yield "quote", f"> {head}\n\nis how it starts."
    yield "line", f"It writes\n{head}\nand then the value."


def _broken_call(wire: Wire) -> Iterator[Slip]:
    """A wrapper around something that is no call is shown verbatim."""
    if not (wire.opener and wire.closer) or wire.family in MESSAGES:
        return
    kind = "broken_call_verbatim"
    text = f"{wire.opener}not a call{wire.closer}"
    yield _slip(kind, wire, "start", text, ("text", text))
    yield _slip(kind, wire, "prose", f"Look: {text} here.", ("text", f"Look: {text} here."))
    both = f"{text}\n{wire.text}\nAfter."
    yield _slip(kind, wire, "then_a_call", both, ("text", text), PARIS, AFTER)


def _two_calls(wire: Wire) -> Iterator[Slip]:
    if wire.shape in (Shape.NAME_AND_JSON, Shape.TREE) or wire.family in NAMED_FIRST:
        return
    if wire.shape is Shape.TAGS and not wire.closer:
        return
    separators = {"glued": "", "line": "\n"}
    if wire.shape is not Shape.TAGS:
        separators |= {"comma": ", "}
    for variant, separator in separators.items():
        if variant == "glued" and wire.family == "olmo3":
            continue
        text = f"{wire.opener}{wire.call}{separator}{wire.call}{wire.closer}"
        yield _slip("two_calls", wire, variant, f"{text}\nAfter.", PARIS, PARIS, AFTER)


def _attributes(wire: Wire) -> Iterator[Slip]:
    kind = "attribute_quotes"
    if wire.shape not in (Shape.TAGS, Shape.TREE):
        return
    if '="' in wire.call:
        for variant, quote in (("none", ""), ("single", "'")):
            call = wire.call.replace('"', quote)
            yield _slip(
                kind, wire, variant, f"{wire.opener}{call}{wire.closer}After.", PARIS, AFTER
            )
    elif "<function=" in wire.call:
        for variant, quote in (("double", '"'), ("single", "'")):
            call = re.sub(r"=(\w+)>", rf"={quote}\1{quote}>", wire.call)
            yield _slip(
                kind, wire, variant, f"{wire.opener}{call}{wire.closer}After.", PARIS, AFTER
            )


def _text_behind(wire: Wire) -> Iterator[Slip]:
    """Text behind a broken call that lacks its closing wrapper."""
    kind, truncated = "text_behind_a_broken_call", ("cut", "get_weather")
    if wire.shape is Shape.TREE or wire.family in NAMED_FIRST:
        return  # a closing tag ends every call
    if wire.shape is Shape.TAGS:
        head = wire.call[: wire.call.index("city")]
        text = f"{wire.opener}{head}ci<ty>Paris{_inner_closer(wire)}"
    else:
        broken = re.sub(r'(<\|"\|>|<escape>|")Paris\1', "Paris!", wire.call)
        text = wire.opener + broken
    yield _slip(kind, wire, "line", f"{text}\n\nAfter.", truncated, AFTER)
    if wire.family != "muse_glimmer":
        yield _slip(kind, wire, "again", f"{text}\n{wire.text}\nAfter.", truncated, PARIS, AFTER)


def _inner_closer(wire: Wire) -> str:
    return wire.call.rpartition(wire.value_closer)[2].strip()


def _raw_patch(wire: Wire) -> Iterator[Slip]:
    """Free text for a custom tool without the JSON around it."""
    if wire.shape is not Shape.NAME_AND_JSON:
        return
    kind, patch = "raw_text_to_a_custom_tool", ("call", "apply_patch", PATCH)
    call = wire.call.replace("get_weather", "apply_patch").replace('{"city": "Paris"}', PATCH)
    text = wire.opener + call + wire.closer
    if wire.closer:
        yield _slip(kind, wire, "end", text, patch)
    else:  # the end of the output may have truncated the text
        yield _slip(kind, wire, "end", text, ("cut", "apply_patch"))
    if wire.family == "harmony":
        text += "<|start|>assistant<|channel|>final<|message|>"
    if wire.closer:
        yield _slip(kind, wire, "text", f"{text}After.", patch, AFTER)
        yield _slip(kind, wire, "truncated", wire.opener + call[:-9], ("cut", "apply_patch"))
    else:
        yield _slip(kind, wire, "again", f"{text}{wire.text}", patch, PARIS)


_GENERATORS = (
    _closing_tag,
    _missing_value_closer,
    _missing_opener,
    _broken_call,
    _two_calls,
    _attributes,
    _text_behind,
    _raw_patch,
)

#: What the documentation calls the slips. Special tokens have tests of their own.
TITLES = {
    "closing_tag": "a closing tag that the format does not have, or behind a list of calls",
    "missing_value_closer": "the closer of a value is missing",
    "missing_opener": "the opening wrapper of a call is missing",
    "broken_call_verbatim": "a wrapper around something that is no call: shown verbatim",
    "two_calls": "several calls or lists in one wrapper",
    "attribute_quotes": "attribute values without quotes, or in other quotes",
    "text_behind_a_broken_call": "text behind a malformed call: shown",
    "raw_text_to_a_custom_tool": "free text for a custom tool without the notation around it",
    "special_token": "an end marker that is a special token inside an open string",
}
SPECIAL_SHAPES = (Shape.JSON_OBJECT, Shape.JSON_LIST, Shape.NAME_AND_JSON, Shape.PYTHONIC)


def render_table() -> list[str]:
    """Return the rows of the documentation: which slips are tolerated in which shape."""
    made = {(slip.kind, slip.shape) for slip in make_slips()}
    made |= {("special_token", shape) for shape in SPECIAL_SHAPES}
    head = ["slip", *(shape.value for shape in Shape)]
    rows = [head, ["---"] * len(head)]
    for kind, title in TITLES.items():
        rows.append([title, *("yes" if (kind, shape) in made else "-" for shape in Shape)])
    return [f"| {' | '.join(row)} |" for row in rows]


def special_pieces(text: str) -> list[tuple[str, bool]]:
    """Split a text as a detokenizer does, with each special token as a piece of its own."""
    token = re.compile(r"(<\|[^<>| ]+\|?>|<｜[^｜]+｜>|\[[A-Z_/]+\]|<\w+\|>)")
    return [(part, token.fullmatch(part) is not None) for part in token.split(text) if part]
