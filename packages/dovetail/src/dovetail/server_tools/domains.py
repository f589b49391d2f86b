"""Domain filters of searches and pages, as in Anthropic's API.

A filter is a domain, which includes its subdomains, with an optional path: `example.com`,
`example.com/blog`. A path may contain one `*`.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from urllib.parse import urlsplit


def is_allowed(url: str, allowed: Sequence[str], blocked: Sequence[str]) -> bool:
    """Return whether a URL passes the filters. Without filters every URL does."""
    if allowed and not any(matches(url, one) for one in allowed):
        return False
    return not any(matches(url, one) for one in blocked)


def matches(url: str, pattern: str) -> bool:
    """Return whether a URL is within a domain and its path."""
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").rstrip(".").encode("idna").decode().lower()
    except (ValueError, UnicodeError):
        return False
    domain, _, path = (
        pattern.partition("://")[2].partition("/") if "://" in pattern else (pattern.partition("/"))
    )
    try:
        domain = domain.strip().rstrip(".").removeprefix("*.").encode("idna").decode().lower()
    except UnicodeError:
        return False
    if not domain or not (host == domain or host.endswith("." + domain)):
        return False
    return _matches_path(parts.path, path.strip("/"))


def _matches_path(path: str, prefix: str) -> bool:
    if not prefix:
        return True
    if "*" in prefix:
        return fnmatchcase(path.lstrip("/"), prefix.rstrip("*") + "*")
    return path == f"/{prefix}" or path.startswith(f"/{prefix}/")
