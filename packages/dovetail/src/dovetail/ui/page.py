"""The static page: its files, its security headers, and the page as one self-contained file."""

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files

import msgspec

from dovetail.ui.session_view import Json

#: The scripts in the order of their dependencies.
SCRIPTS = (
    *("dom.js", "format.js", "charts.js", "timeline.js", "turn.js", "session.js"),
    *("sessions.js", "overview.js", "app.js"),
)
STYLE = "style.css"
_CONTENT_TYPES = {
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "html": "text/html; charset=utf-8",
}
HTML = _CONTENT_TYPES["html"]
_POLICY = (
    "default-src 'none'; script-src {script}; style-src {style}; img-src {image}; "
    "connect-src {connect}; base-uri 'none'; form-action 'none'{frame}; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
#: Nothing is loaded from other servers, no inline code runs, and no other page embeds this one.
CONTENT_SECURITY_POLICY = _POLICY.format(
    script="'self'",
    style="'self'",
    image="'self'",
    connect="'self'",
    frame="; frame-ancestors 'none'",
)
SECURITY_HEADERS = (
    ("content-security-policy", CONTENT_SECURITY_POLICY),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-store"),
)

_IMPORT = re.compile(r"^import [^;]*;\n", re.M)
_EXPORT = re.compile(r"^export ", re.M)
_SCRIPT_TAG = re.compile(r'<script type="module" src="[^"]*"></script>')
_STYLE_TAG = re.compile(r'<link rel="stylesheet" href="[^"]*">')
_ICON_TAG = re.compile(r' *<link rel="icon"[^>]*>\n')


@cache
def read_static_files() -> dict[str, tuple[bytes, str]]:
    """Return the files of the page: name -> content and content type."""
    folder = files("dovetail.ui") / "static"
    return {
        one.name: (one.read_bytes(), _CONTENT_TYPES[one.name.rpartition(".")[2]])
        for one in folder.iterdir()
        if one.name.rpartition(".")[2] in _CONTENT_TYPES
    }


def build_standalone_page(session: Json) -> bytes:
    """Return the page as one file that shows a session and loads nothing.

    The scripts become one module. Its hash is in the policy, so that no other code can run.
    """
    script = "\n".join(_EXPORT.sub("", _IMPORT.sub("", _read_text(one))) for one in SCRIPTS)
    style = _read_text(STYLE)
    policy = _POLICY.format(
        script=_source_hash(script),
        style=_source_hash(style),
        image="'none'",
        connect="'none'",
        frame="",
    )
    # "<" in the data must not end or open an element.
    data = msgspec.json.encode(session).decode().replace("<", "\\u003c")
    meta = f'<meta http-equiv="content-security-policy" content="{policy}">'
    page = _ICON_TAG.sub("", _read_text("index.html"))
    page = page.replace('<meta charset="utf-8">', f'<meta charset="utf-8">\n  {meta}')
    page = _STYLE_TAG.sub(lambda _: f"<style>{style}</style>", page)
    page = _SCRIPT_TAG.sub("", page)
    data_block = f'<script type="application/json" id="session-data">{data}</script>'
    code = f'<script type="module">{script}</script>'
    return page.replace("</body>", f"{data_block}\n{code}\n</body>").encode()


def _read_text(name: str) -> str:
    return read_static_files()[name][0].decode()


def _source_hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
