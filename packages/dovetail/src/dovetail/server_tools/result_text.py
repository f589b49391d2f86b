"""The text of search results as the model reads it, and the references to results in its output.

Results are numbered through the whole conversation, so that a number names one result. A result
starts with a line `[3] Title`, followed by a line with its URL.
"""

import re
from collections.abc import Iterator

from dovetail.server_tools.search import FoundPage
from dovetail_model import Request, TextBlock, ToolCallBlock, ToolResultBlock

PART_SEPARATOR = "\n\n"
MAX_RESULT_CHARS = 2_000
MAX_CITED_CHARS = 150
_MAX_TITLE_CHARS = 200
_RESULT_HEAD = re.compile(r"^\[(\d{1,4})\] (.*)\n(https?://\S+)$", re.MULTILINE)
_FALSE_HEAD = re.compile(r"^(?=\[\d{1,4}\] )", re.MULTILINE)
_REFERENCE = re.compile(r"\[(\d{1,4}(?:\s?[,;]\s?\d{1,4}){0,9})\]")
_MAX_REFERENCE_CHARS = 72
_NUMBER = re.compile(r"\d+")


def write_result(number: int, page: FoundPage) -> str:
    """Write one result. An excerpt cannot look like the start of another result."""
    title = " ".join(page.title.split())[:_MAX_TITLE_CHARS]
    lines = [f"[{number}] {title}", page.url]
    if page.page_age:
        lines.append(f"Date: {page.page_age}")
    text = _FALSE_HEAD.sub(" ", page.text.strip()[:MAX_RESULT_CHARS])
    return "\n".join([*lines, text] if text else lines)


class ResultSource:
    """A result that the model may refer to."""

    __slots__ = ("number", "text", "title", "url")

    def __init__(self, number: int, url: str, title: str, text: str = "") -> None:
        self.number = number
        self.url = url
        self.title = title
        self.text = " ".join(text.split())[:MAX_CITED_CHARS]


def find_sources(request: Request) -> dict[int, ResultSource]:
    """Find the numbered results in the history of a request."""
    found: dict[int, ResultSource] = {}
    for text in _result_texts(request):
        heads = list(_RESULT_HEAD.finditer(text))
        ends = [*(head.start() for head in heads[1:]), len(text)]
        for head, end in zip(heads, ends, strict=False):
            number = int(head[1])
            found[number] = ResultSource(number, head[3], head[2], text[head.end() : end])
    return found


def _result_texts(request: Request) -> Iterator[str]:
    """Yield the texts of the results of searches."""
    names = {tool.name for tool in request.server_tools if tool.kind == "web_search"}
    calls: set[str] = set()
    for turn in request.turns if names else ():
        for block in turn.blocks:
            if isinstance(block, ToolCallBlock) and block.name in names:
                calls.add(block.id)
            elif isinstance(block, ToolResultBlock) and block.call_id in calls:
                yield from (one.text for one in block.blocks if isinstance(one, TextBlock))


class ReferenceScanner:
    """Finds references such as `[3]` or `[1, 2]` in streamed text."""

    __slots__ = ("_length", "_tail")

    def __init__(self) -> None:
        self._tail = ""  # the end of the text, if a reference may have started in it
        self._length = 0  # of the text so far

    def feed(self, text: str) -> list[tuple[int, int, list[int]]]:
        """Return the references that this text completes: start, end and numbers."""
        known = self._tail + text
        base = self._length - len(self._tail)
        self._length += len(text)
        found = [
            (base + one.start(), base + one.end(), [int(n) for n in _NUMBER.findall(one[1])])
            for one in _REFERENCE.finditer(known)
        ]
        at = known.rfind("[")
        opened = at >= 0 and "]" not in known[at:] and len(known) - at <= _MAX_REFERENCE_CHARS
        self._tail = known[at:] if opened else ""
        return found
