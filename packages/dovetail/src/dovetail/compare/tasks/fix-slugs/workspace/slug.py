"""URL slugs."""


def slugify(title):
    return title.lower().replace(" ", "-")
