"""Check the references of every page."""

import sys
from html.parser import HTMLParser
from pathlib import Path

LINKS = {
    "site/index.html": [
        "guide/start.html",
        "guide/setup.html#linux",
        "about-us.html",
        "images/logo.svg",
        "https://example.org/missing",
    ],
    "site/about-us.html": ["index.html"],
    "site/guide/start.html": ["../index.html", "setup.html#win"],
    "site/guide/setup.html": ["../images/logo.svg"],
}
IDS = {"site/guide/setup.html": ["linux", "win"]}


class PageReader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src"):
                self.links.append((value or "").removeprefix("./"))
            elif name == "id":
                self.ids.append(value or "")


def find_problem() -> str | None:
    files = sorted(path.as_posix() for path in Path("site").rglob("*") if path.is_file())
    if files != sorted([*LINKS, "site/images/logo.svg"]):
        return f"the files of the site are {files}"
    for name, links in LINKS.items():
        page = PageReader()
        page.feed(Path(name).read_text("utf-8"))
        if page.links != links:
            return f"{name} refers to {page.links}, expected {links}"
        if page.ids != IDS.get(name, []):
            return f"the ids of {name} were changed to {page.ids}"
    return None


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
