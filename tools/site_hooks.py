"""MkDocs hooks: include the pages of the repository that are outside `docs/`.

The site's home page is README.md. A link from one page to another is relative to the repository;
it is rewritten for the place that both pages have on the site. A link to a file that is not a page
(LICENSE, a configuration file) becomes plain text, since the site does not contain the file.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("dovetail", "verify", "parsers", "protocols", "tokenizers", "model")

#: Path in the repository -> path on the site, for pages outside `docs/`.
EXTRA_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "reporting-vulnerabilities.md",
    "deploy/README.md": "deployment.md",
    "examples/README.md": "examples.md",
    "benchmarks/RESULTS.md": "benchmark-results.md",
    **{f"packages/{name}/README.md": f"packages/{name}.md" for name in PACKAGES},
    **{f"packages/{name}/CHANGELOG.md": f"changes/{name}.md" for name in PACKAGES},
}
SOURCES = {site: source for source, site in EXTRA_PAGES.items()}

_LINK = re.compile(r"\[([^\]]*)\]\(([^()\s:]+)\)")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages outside `docs/`."""
    for source, site in EXTRA_PAGES.items():
        text = (ROOT / source).read_text("utf-8")
        files.append(File.generated(config, site, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite the links of a page for the site, outside of fenced code."""
    site = page.file.src_uri
    source = SOURCES.get(site, f"docs/{site}")
    parts = re.split(r"(^```.*?^```)", markdown, flags=re.M | re.S)
    parts[::2] = [_LINK.sub(lambda link: _rewrite(link, source, site), text) for text in parts[::2]]
    return "".join(parts)


def _rewrite(link: re.Match[str], source: str, site: str) -> str:
    text, target = link.groups()
    path, _, anchor = target.partition("#")
    if not path:
        return link[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    place = EXTRA_PAGES.get(path, path.removeprefix("docs/") if path.startswith("docs/") else None)
    if place is None:
        return text
    relative = posixpath.relpath(place, posixpath.dirname(site) or ".")
    return f"[{text}]({relative}{'#' + anchor if anchor else ''})"
