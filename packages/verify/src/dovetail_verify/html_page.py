"""Render reports as HTML from Jinja2 templates.

`templates/page.html` is the layout of every report, `templates/parts.html` has what they are made
of. A package with a report of its own keeps its template in its folder `templates`.
"""

from functools import cache
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

_SHARED_TEMPLATES = "dovetail_verify"


def render_template(name: str, *, package: str = _SHARED_TEMPLATES, **values: Any) -> str:
    """Render a template of a package. Values are escaped unless a template marks them as markup."""
    return _environment(package).get_template(name).render(values)


@cache
def _environment(package: str) -> Environment:
    return Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader(_SHARED_TEMPLATES)]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
