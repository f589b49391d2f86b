"""File limits for thousands of connections."""

import resource


def raise_file_limit() -> int:
    """Raise the limit of open files of this process and its children to the maximum."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
