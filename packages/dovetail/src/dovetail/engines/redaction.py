"""Remove the address and the credentials of an engine from texts that clients see.

Servers quote their own address in errors, and some echo the headers of a request, including the
API key with which this server authenticates itself.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from dovetail.net.http_client import Endpoint
from dovetail_model import DovetailError

_MIN_SECRET_CHARS = 4  # shorter header values would match ordinary words
_MIN_UNIQUE_CHARS = 12  # longer ones are removed even inside of words
_URL = re.compile(r"\b(?:https?|wss?|unix|tcp|tls)://[^\s,;)\'\"<>]+")
_CREDENTIALS = re.compile(r"\bBearer\s+[^\s,;)\'\"<>]{8,}", re.IGNORECASE)
_SECRET, _ADDRESS = "***", "the engine"


class Redactor:
    """Removes the secrets of one endpoint: its address, and the values of its headers."""

    __slots__ = ("_address", "_secrets")

    def __init__(self, endpoint: Endpoint) -> None:
        headers = endpoint.headers.values()
        # of `Bearer KEY` also the key alone
        self._secrets = _any_of(
            {*headers, *(value.split()[-1] for value in headers if value.strip())}
        )
        self._address = _any_of(
            {endpoint.socket}
            if endpoint.socket is not None
            else {
                str(endpoint),
                endpoint.authority,
                f"{endpoint.host}:{endpoint.port}",
                endpoint.host,
            }
        )

    def clean(self, text: str) -> str:
        """Return the text without secrets."""
        text = _URL.sub(_ADDRESS, self.clean_credentials(text))
        return text if self._address is None else self._address.sub(_ADDRESS, text)

    def clean_credentials(self, text: str) -> str:
        """Return the text without credentials, for the log, which may contain addresses."""
        if self._secrets is not None:
            text = self._secrets.sub(_SECRET, text)
        return _CREDENTIALS.sub(_SECRET, text)

    def clean_bytes(self, content: bytes) -> bytes:
        """Return a response without secrets."""
        return self.clean(content.decode("utf-8", "surrogateescape")).encode(
            "utf-8", "surrogateescape"
        )

    def clean_error(self, error: DovetailError) -> DovetailError:
        """Return the error without secrets. Its log message keeps the address."""
        param = None if error.param is None else self.clean(error.param)
        cleaned = type(error)(self.clean(error.message), param=param, retry_after=error.retry_after)
        cleaned.reason = error.reason
        cleaned.log_message = self.clean_credentials(error.log_message or error.message)
        return cleaned

    @contextmanager
    def clean_errors(self) -> Iterator[None]:
        """Clean the errors that are raised in the block."""
        try:
            yield
        except DovetailError as error:
            raise self.clean_error(error) from error


def _any_of(texts: set[str]) -> re.Pattern[str] | None:
    """Return a pattern for these texts, the longest first; None without texts.

    Short texts match only as whole words, because they may be part of ordinary ones.
    """
    known = sorted((text for text in texts if len(text) >= _MIN_SECRET_CHARS), key=len)
    if not known:
        return None
    words = "|".join(
        re.escape(text)
        if len(text) >= _MIN_UNIQUE_CHARS
        else rf"(?<![\w.-]){re.escape(text)}(?![\w-])"
        for text in reversed(known)
    )
    return re.compile(words, re.IGNORECASE)
