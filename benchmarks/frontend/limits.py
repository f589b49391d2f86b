"""Room for thousands of connections."""

import resource


def raise_file_limit() -> int:
    """Lets this process and its children have as many files open as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
