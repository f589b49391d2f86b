"""Render reports as HTML from Jinja2 templates.

`templates/page.html` is the layout of every report, and `templates/parts.html` has the macros for
its elements. A package with its own report has the template in its own `templates` folder.
"""

from functools import cache
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

_SHARED_TEMPLATES = "dovetail_verify"


def render_template(name: str, *, package: str = _SHARED_TEMPLATES, **values: Any) -> str:
    """Render a template of a package. Values are escaped unless the template marks them safe."""
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
