"""Reports as one HTML file that stands alone: no script, nothing to fetch, light and dark.

Strings are text and get escaped; what is markup already is `Html`, which only the functions here
make.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

BadgeTone = Literal["good", "bad", "warn", "dim", "plain"]


class Html(str):
    """Markup. Everything else is text."""

    __slots__ = ()


Content = str | Html


@dataclass(frozen=True)
class PageSection:
    """A part of a page under its own heading."""

    title: str
    parts: Sequence[Content]


@dataclass(frozen=True)
class KeyFigure:
    """A number that is shown large, and what it counts."""

    value: str
    label: str
    tone: BadgeTone = "plain"


def render_page(title: str, sections: Iterable[PageSection], subtitle: Content = "") -> str:
    """The whole file."""
    body = "\n".join(
        f"<section><h2>{escape(section.title)}</h2>"
        f"{''.join(map(_render_block, section.parts))}</section>"
        for section in sections
    )
    under = f"<p class=sub>{_escape_content(subtitle)}</p>" if subtitle else ""
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body><main><header><h1>{escape(title)}</h1>{under}</header>\n{body}\n</main></body></html>\n"
    )


def render_table(
    columns: Sequence[str], rows: Iterable[Sequence[Content]], numeric_columns: int = 0
) -> Html:
    """A table; the last `numbers` columns are set right. On a narrow screen rows become cards."""
    first = len(columns) - numeric_columns
    kinds = [' class="n"' if at >= first else "" for at in range(len(columns))]
    head = "".join(
        f"<th{kind}>{escape(name)}</th>" for name, kind in zip(columns, kinds, strict=True)
    )
    lines = []
    for row in rows:
        cells = zip(columns, kinds, row, strict=True)
        line = "".join(_render_cell(name, kind, cell) for name, kind, cell in cells)
        lines.append(f"<tr>{line}</tr>")
    return Html(f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>")


def render_figures(shown: Iterable[KeyFigure]) -> Html:
    """Large numbers side by side."""
    cells = "".join(
        f'<div class="figure {figure.tone}"><b>{escape(figure.value)}</b>'
        f"<span>{escape(figure.label)}</span></div>"
        for figure in shown
    )
    return Html(f'<div class="figures">{cells}</div>')


def render_badge(text: str, tone: BadgeTone = "plain") -> Html:
    """A word on a coloured ground."""
    return Html(f'<span class="badge {tone}">{escape(text)}</span>')


def render_code(text: str) -> Html:
    """Text as a machine wrote it, that may break anywhere."""
    return Html(f"<code>{escape(text)}</code>")


def render_details(
    summary: Content, parts: Iterable[Content], *, opened: bool = False, inline: bool = False
) -> Html:
    """A part that is folded away until somebody wants it; `inline` where it stands in a table."""
    inner = "".join(map(_render_block, parts))
    kind = ' class="inline"' if inline else ""
    return Html(
        f"<details{kind}{' open' if opened else ''}><summary>{_escape_content(summary)}</summary>"
        f'<div class="folded">{inner}</div></details>'
    )


def render_definitions(pairs: Iterable[tuple[str, Content]]) -> Html:
    """Names and what they stand for, one below the other."""
    lines = "".join(
        f"<dt>{escape(name)}</dt><dd>{_escape_content(value)}</dd>" for name, value in pairs
    )
    return Html(f"<dl>{lines}</dl>")


def join_content(*parts: Content, between: str = " ") -> Html:
    """Text and markup in a line."""
    return Html(escape(between).join(map(_escape_content, parts)))


def _render_cell(name: str, kind: str, content: Content) -> str:
    """A cell. An empty one says so, for a card leaves it out."""
    empty = "" if content else " data-empty"
    return (
        f'<td{kind}{empty} data-label="{escape(name)}"><div>{_escape_content(content)}</div></td>'
    )


def _escape_content(content: Content) -> str:
    return str(content) if isinstance(content, Html) else escape(content)


def _render_block(content: Content) -> str:
    """A part of a section: markup as it is, text as a paragraph."""
    return str(content) if isinstance(content, Html) else f"<p>{escape(content)}</p>"


_STYLE = """
:root{color-scheme:light dark;--bg:#fbfaf8;--card:#fff;--ink:#1d1b18;--soft:#6b665e;--line:#e4e0d9;
--good:#1a7a45;--good-bg:#e3f4ea;--bad:#b3261e;--bad-bg:#fce8e6;--warn:#8a5a00;--warn-bg:#fdf1d8;
--dim-bg:#efece6;--code:#f4f1ec}
@media (prefers-color-scheme:dark){:root{--bg:#161513;--card:#1f1d1a;--ink:#ece8e1;--soft:#a29b90;
--line:#37332d;--good:#6fd69b;--good-bg:#173325;--bad:#ff9b93;--bad-bg:#401c19;--warn:#f0c265;
--warn-bg:#3b2d0f;--dim-bg:#2b2824;--code:#282521}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif}
main{max-width:1080px;margin:0 auto;padding:32px 24px 64px}
h1{font-size:28px;line-height:1.2;margin:0 0 4px;overflow-wrap:anywhere}
h2{font-size:19px;margin:40px 0 12px}
p{margin:0 0 12px;max-width:75ch}.sub{color:var(--soft)}
.figures{display:flex;flex-wrap:wrap;gap:12px;margin:0 0 16px}
.figure{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px 18px;
min-width:128px;flex:1 1 128px}
.figure b{display:block;font-size:26px;line-height:1.2;font-variant-numeric:tabular-nums}
.figure span{color:var(--soft);font-size:13px}
.figure.good b{color:var(--good)}.figure.bad b{color:var(--bad)}.figure.warn b{color:var(--warn)}
.figure.dim b{color:var(--soft)}
table{width:100%;border-collapse:separate;background:var(--card);border:1px solid var(--line);
border-radius:10px;border-spacing:0;margin:0 0 16px;font-size:14px}
th,td{text-align:left;vertical-align:top;padding:8px 12px;border-top:1px solid var(--line);
overflow-wrap:break-word}
th{font-size:12px;font-weight:600;color:var(--soft);border-top:0;white-space:nowrap}
td:first-child{min-width:104px}
.n{text-align:right;font-variant-numeric:tabular-nums}
.badge{display:inline-block;padding:1px 8px;border-radius:99px;font-size:12px;font-weight:600;
white-space:nowrap;background:var(--dim-bg);color:var(--soft)}
.badge.good{background:var(--good-bg);color:var(--good)}
.badge.bad{background:var(--bad-bg);color:var(--bad)}
.badge.warn{background:var(--warn-bg);color:var(--warn)}
code{font:12.5px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;background:var(--code);
padding:1px 5px;border-radius:4px;overflow-wrap:anywhere}
details{background:var(--card);border:1px solid var(--line);border-radius:10px;margin:0 0 8px}
summary{cursor:pointer;padding:10px 14px;overflow-wrap:anywhere}
.folded{padding:2px 14px 12px;border-top:1px solid var(--line)}
details.inline{background:none;border:0;margin:0}.inline>summary{padding:0}
.inline>.folded{padding:0;border:0}.inline dl{font-size:13px;margin:6px 0 0}
.folded table{border:0;margin:0}.folded>p,.folded>dl{margin-top:10px}
dl{display:grid;grid-template-columns:max-content 1fr;gap:6px 16px;margin:0 0 12px}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere;min-width:0}
@media (min-width:641px){.folded td:nth-child(2){min-width:300px}}
@media (max-width:640px){main{padding:20px 14px 48px}h1{font-size:23px}
.figure{min-width:0;flex:1 1 40%;padding:10px 14px}
table,tbody,tr,td{display:block;width:100%}thead{display:none}
tr{padding:8px 0;border-top:1px solid var(--line)}tr:first-child{border-top:0}
td,td.n{border:0;padding:3px 12px;text-align:left;display:flex;gap:10px}
td>div{min-width:0}td[data-empty]{display:none}
td::before{content:attr(data-label);color:var(--soft);font-size:12px;flex:0 0 92px;padding-top:2px}
dl{grid-template-columns:1fr;gap:0}dd{margin-bottom:8px}}
@media print{body{background:#fff}details{break-inside:avoid}}
"""
