"""The model catalog that Codex reads: what it should know of each served model.

Without an entry Codex treats a model as unknown: it cuts tool output at 10,000 bytes, offers no
apply_patch and guesses the window.
"""

from dovetail.http.codex_catalog import ProfileError, aliased, read_profile
from dovetail.http.entries import entry
from dovetail.http.published import Catalog, Published, catalog

__all__ = [
    "Catalog",
    "ProfileError",
    "Published",
    "aliased",
    "catalog",
    "entry",
    "read_profile",
]
