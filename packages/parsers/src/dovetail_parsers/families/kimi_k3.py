"""Kimi K3: elements opened and closed by tokens; arguments state their type.

A call may instead contain one JSON object, in an element `json`.
"""

from collections.abc import Iterator, Mapping

from dovetail_parsers.arguments.json_body import JsonBody
from dovetail_parsers.family import Family
from dovetail_parsers.grammar import CallAction, Channel, Edge, Mode, ReasoningFormat, ToolFormat

_OPEN, _CLOSE, _SEP = "<|open|>", "<|close|>", "<|sep|>"
_END_OF_MESSAGE = (f"{_CLOSE}message{_SEP}", "<|end_of_msg|>")
_TYPES = ("number", "boolean", "null", "object", "array", "integer")


def _number(_: str, index: int) -> str:
    return str(index + 1)


def _read(text: str) -> tuple[str, str | None]:
    """Return an attribute's value with its two escapes undone."""
    return text.replace("&quot;", '"').replace("&amp;", "&"), None


def _spell(value: str, _: int) -> str:
    return value.replace("&", "&amp;").replace('"', "&quot;")


def _parameters(opens: CallAction, closes: CallAction) -> Mapping[str, Edge]:
    return {
        f'{_OPEN}argument key="': Edge("key", opens),
        f"{_CLOSE}call{_SEP}": Edge("done", closes),
    }


#: The quotes that models write instead of the prescribed ones, by the suffix of their modes.
_OTHER_QUOTES = {"_bare": "", "_single": "'"}
_CALLS = {f"{_OPEN}call tool={quote}": Edge(f"name{s}") for s, quote in _OTHER_QUOTES.items()}


def _other_keys(opens: CallAction) -> dict[str, Edge]:
    return {f"{_OPEN}argument key={q}": Edge(f"key{s}", opens) for s, q in _OTHER_QUOTES.items()}


def _other_modes() -> Iterator[tuple[str, Mode]]:
    """Yield the modes of names and keys in other quotes than the prescribed ones."""
    for suffix, q in _OTHER_QUOTES.items():
        ends = {f"{q} index={q}": Edge(f"index{suffix}"), f"{q}{_SEP}": Edge("head")}
        yield f"name{suffix}", Mode(Channel.NAME, on=ends, read=_read)
        yield f"index{suffix}", Mode(Channel.ATTRIBUTE, on={f"{q}{_SEP}": Edge("head")})
        types = {f"{q} type={q}{kind}{q}{_SEP}": Edge("literal") for kind in _TYPES}
        types |= {f"{q} type={q}string{q}{_SEP}": Edge("string"), f"{q}{_SEP}": Edge("value")}
        yield f"key{suffix}", Mode(Channel.KEY, on=types, read=_read)


TOOLS = ToolFormat(
    modes={
        "text": Mode(
            Channel.TEXT,
            on={f"{_OPEN}tools{_SEP}": Edge("section")},
            tolerate={f'{_OPEN}call tool="': Edge("name"), **_CALLS},
        ),
        "section": Mode(Channel.GAP, on={f'{_OPEN}call tool="': Edge("name")}, tolerate=_CALLS),
        "name": Mode(
            Channel.NAME,
            on={'" index="': Edge("index")},
            tolerate={f'"{_SEP}': Edge("head")},
            read=_read,
            spell=_spell,
        ),
        "index": Mode(Channel.ATTRIBUTE, on={f'"{_SEP}': Edge("head")}, spell=_number),
        "head": Mode(
            Channel.GAP,
            on=_parameters(CallAction.OPEN, CallAction.OPEN | CallAction.CLOSE),
            tolerate={
                f'{_OPEN}json type="object"{_SEP}': Edge("json", CallAction.OPEN),
                **_other_keys(CallAction.OPEN),
            },
        ),
        "args": Mode(
            Channel.GAP,
            on=_parameters(CallAction.NONE, CallAction.CLOSE),
            tolerate=_other_keys(CallAction.NONE),
        ),
        "key": Mode(
            Channel.KEY,
            on={
                f'" type="string"{_SEP}': Edge("string"),
                **{f'" type="{kind}"{_SEP}': Edge("literal") for kind in _TYPES},
            },
            tolerate={f'"{_SEP}': Edge("value")},
            read=_read,
            spell=_spell,
        ),
        "string": Mode(Channel.STRING, on={f"{_CLOSE}argument{_SEP}": Edge("args")}),
        "literal": Mode(Channel.LITERAL, on={f"{_CLOSE}argument{_SEP}": Edge("args")}),
        "value": Mode(Channel.VALUE, on={f"{_CLOSE}argument{_SEP}": Edge("args")}),
        "json": Mode(Channel.BODY, body=JsonBody(), end=Edge("json_end")),
        "json_end": Mode(
            Channel.GAP,
            on={f"{_CLOSE}json{_SEP}": Edge("done"), f"{_CLOSE}call{_SEP}": Edge("done")},
        ),
        "done": Mode(
            Channel.GAP,
            on={f'{_OPEN}call tool="': Edge("name"), f"{_CLOSE}tools{_SEP}": Edge("text")},
            tolerate={f"{_CLOSE}call{_SEP}": Edge("done"), **_CALLS},
        ),
        **dict(_other_modes()),
    },
    orphans=(f"{_CLOSE}tools{_SEP}", f"{_CLOSE}call{_SEP}", *_END_OF_MESSAGE),
)

FAMILY = Family(
    name="kimi_k3",
    sample=(
        '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>'
        '<|open|>argument key="city" type="string"<|sep|>Paris<|close|>argument<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|>"
    ),
    tool_names=("kimi_k3",),
    reasoning_names=("kimi_k3",),
    pairs_with="kimi_k3",
    models={"*kimi-k3*": "kimi_k3"},
    template_markers=("<|open|>", "<|sep|>"),
    tools=TOOLS,
    reasoning=ReasoningFormat(
        openers=(f"{_OPEN}think{_SEP}",),
        closers=(f"{_CLOSE}think{_SEP}",),
        frames=(f"{_OPEN}response{_SEP}", f"{_CLOSE}response{_SEP}", *_END_OF_MESSAGE),
    ),
)
