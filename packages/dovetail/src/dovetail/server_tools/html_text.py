"""Extract the visible text of HTML in linear time.

Pages are chosen by a model and may be hostile. The scanner never searches the same text twice: a
search without a result ends the page or is not repeated.
"""

import html
import re

MAX_HTML_CHARS = 2 << 20
MAX_TAGS = 200_000  # far more than pages have; the rest is omitted
_MAX_TITLE_CHARS = 1_000
_HIDDEN = frozenset(("noscript", "template", "svg", "iframe", "object"))
_RAW = frozenset(("script", "style", "title", "textarea"))  # only their own end tag is markup
_INLINE = frozenset(
    (
        "a", "abbr", "b", "bdi", "bdo", "cite", "code", "data", "em", "font", "i", "kbd",
        "mark", "q", "s", "samp", "small", "span", "strong", "sub", "sup", "textarea",
        "time", "u", "var", "wbr",
    )
)  # fmt: skip
_NAME = re.compile(r"[A-Za-z][^\s/>]{0,63}")
_TAG_STOP = re.compile(r"=\s*([\"'])|>")
_RAW_ENDS = {name: re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE) for name in _RAW}
_ENTITY = re.compile(
    r"&(?:#\d{1,7}(?!\d)|#[xX][0-9a-fA-F]{1,6}(?![0-9a-fA-F])|[A-Za-z][A-Za-z0-9]{1,31});?"
)
_SPACES = re.compile(r"\s+")
_BLANK_LINES = re.compile(r"\n{3,}")


def extract_html(text: str) -> tuple[str, str]:
    """Return the title and the text of a page. Block elements start a new line."""
    scanner = _Scanner(text[:MAX_HTML_CHARS])
    scanner.run()
    return scanner.title(), scanner.text()


class _Scanner:
    """Reads a page from its start to its end."""

    def __init__(self, page: str) -> None:
        self._page = page
        self._at = 0
        self._parts: list[str] = []
        self._title = ""
        self._hidden = ""  # the outermost open element whose text is not shown
        self._hidden_depth = 0  # of elements with its name
        self._verbatim = 0  # open elements that keep their white space
        self._unclosed_quotes: set[str] = set()  # quotes that do not occur again

    def run(self) -> None:
        page, end = self._page, len(self._page)
        for _ in range(MAX_TAGS):
            start = page.find("<", self._at)
            if start < 0:
                break
            self._add_text(page[self._at : start])
            self._at = self._read_markup(start)
            if self._at >= end:
                return
        else:
            return
        self._add_text(page[self._at :])

    def title(self) -> str:
        return " ".join(self._title.split())

    def text(self) -> str:
        lines = "".join(self._parts).split("\n")
        return _BLANK_LINES.sub("\n\n", "\n".join(line.strip() for line in lines)).strip()

    def _read_markup(self, start: int) -> int:
        """Read a tag, a comment or a declaration. Returns where it ends."""
        page = self._page
        if page.startswith("<!--", start):
            return self._end_of("-->", start + 2)
        if page.startswith(("<!", "<?"), start):
            return self._end_of(">", start)
        closes = page.startswith("/", start + 1)
        name = _NAME.match(page, start + 1 + closes)
        if name is None:
            self._add_text("<")
            return start + 1
        end = self._end_of_tag(name.end())
        tag = name[0].lower()
        if closes:
            self._close(tag)
            return end
        return self._open(tag, end, empty=page.startswith("/>", end - 2))

    def _end_of(self, text: str, start: int) -> int:
        """Return the position behind a text; the end of the page without it."""
        found = self._page.find(text, start)
        return len(self._page) if found < 0 else found + len(text)

    def _end_of_tag(self, at: int) -> int:
        """Return the position behind a tag. Quoted values may contain `>`."""
        while (stop := _TAG_STOP.search(self._page, at)) is not None:
            quote = stop[1]
            at = stop.end()
            if quote is None:
                return at
            if quote not in self._unclosed_quotes:
                closing = self._page.find(quote, at)
                if closing < 0:
                    self._unclosed_quotes.add(quote)
                else:
                    at = closing + 1
        return len(self._page)

    def _open(self, tag: str, end: int, *, empty: bool) -> int:
        """Open an element. Returns where reading continues."""
        if tag in _RAW:
            return self._read_raw(tag, end)
        if self._hidden:
            self._hidden_depth += tag == self._hidden and not empty
        elif tag in _HIDDEN:
            if not (tag == "svg" and empty):
                self._hidden, self._hidden_depth = tag, 1
        else:
            self._verbatim += tag == "pre"
            self._start_line(tag)
        return end

    def _close(self, tag: str) -> None:
        if self._hidden:
            self._hidden_depth -= tag == self._hidden
            if not self._hidden_depth:
                self._hidden = ""
            return
        self._verbatim -= tag == "pre" and self._verbatim > 0
        self._start_line(tag)

    def _read_raw(self, tag: str, start: int) -> int:
        """Read an element without markup. Returns where its end tag starts."""
        found = _RAW_ENDS[tag].search(self._page, start)
        end = len(self._page) if found is None else found.start()
        if tag == "title" and not (self._hidden or self._title):
            self._title = _unescape(self._page[start : min(end, start + _MAX_TITLE_CHARS)])
        elif tag == "textarea":
            self._add_text(self._page[start:end])
        return end if found is None else self._end_of_tag(found.end())

    def _add_text(self, text: str) -> None:
        if text and not self._hidden:
            text = _unescape(text)
            self._parts.append(text if self._verbatim else _SPACES.sub(" ", text))

    def _start_line(self, tag: str) -> None:
        if tag == "li":
            self._parts.append("\n- ")
        elif tag in ("td", "th"):
            self._parts.append(" ")
        elif tag not in _INLINE:
            self._parts.append("\n")


def _unescape(text: str) -> str:
    """Replace character references. Numbers of any length would take too long to convert."""
    if "&" not in text:
        return text
    return _ENTITY.sub(lambda found: html.unescape(found[0]), text)
