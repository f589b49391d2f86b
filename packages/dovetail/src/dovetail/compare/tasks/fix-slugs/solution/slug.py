"""URL slugs."""

import re
import unicodedata


def slugify(title):
    plain = unicodedata.normalize("NFKD", title)
    plain = "".join(one for one in plain if not unicodedata.combining(one))
    return re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-") or "untitled"
