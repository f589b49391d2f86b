"""The certificate that HTTPS is served with, read again when it is renewed."""

import asyncio
import logging
import ssl
import time
from collections.abc import Callable
from math import nan
from pathlib import Path

from cryptography import x509

from dovetail.settings.file_version import FileVersion, get_file_version

CHECK_INTERVAL_SECONDS = 5.0  # seconds
EXPIRY_WARNING_SECONDS = 14 * 86_400.0  # seconds in which one that ends is told of when it is read

_log = logging.getLogger(__name__)


class CertificateError(OSError):
    """A certificate and key that cannot be used, and why."""


class TlsCertificate:
    """A certificate with its chain, and its key: in a file of its own, or in the same one.

    `context` stays the same object: connections that are made after a renewal get the new one.
    `expires` is when clients refuse it, a time of the clock in seconds, if that can be read.
    """

    __slots__ = ("_cert", "_clock", "_key", "_loaded_versions", "context", "expires_at")

    def __init__(
        self, cert: Path, key: Path | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._cert = cert
        self._key = key or cert
        self._clock = clock
        self.context = _new_context()
        self._loaded_versions = self._file_versions()
        _load(self.context, self._cert, self._key)
        self.expires_at = self._read_expiry()

    def reload(self) -> None:
        """Takes the files as they are now. Where they do not fit together, the old ones stay."""
        self._loaded_versions = self._file_versions()
        try:
            _load(_new_context(), self._cert, self._key)  # half of a pair would break the real one
            _load(self.context, self._cert, self._key)
        except CertificateError as error:
            _log.error("certificate_refused", extra={"fields": {"reason": str(error)}})
            return
        _log.info("certificate_read", extra={"fields": {"file": str(self._cert)}})
        self.expires_at = self._read_expiry()

    def reload_if_changed(self) -> None:
        """Reads the files again where they have changed."""
        if self._file_versions() != self._loaded_versions:
            self.reload()

    async def watch(self) -> None:
        """Looks every few seconds, for as long as the server runs."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_SECONDS)
            self.reload_if_changed()

    def _read_expiry(self) -> float:
        """When it ends. One that has ended is served, since nothing better is there, and told."""
        try:
            until = x509.load_pem_x509_certificate(_read_file(self._cert)).not_valid_after_utc
        except ValueError:  # OpenSSL reads more than this does, and it is OpenSSL that serves it
            return nan
        left = until.timestamp() - self._clock()
        if left < EXPIRY_WARNING_SECONDS:
            event = "certificate_expired" if left <= 0 else "certificate_expires_soon"
            fields = {"file": str(self._cert), "until": f"{until:%Y-%m-%d %H:%M} UTC"}
            _log.warning(event, extra={"fields": fields})
        return until.timestamp()

    def _file_versions(self) -> tuple[FileVersion, FileVersion]:
        now = self._clock()
        return get_file_version(self._cert, now), get_file_version(self._key, now)


def _new_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def _load(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    for path in (cert, key):
        if not path.is_file():
            raise CertificateError(f"there is no file {path}")
    password_requested: list[bool] = []

    def password() -> str:
        """Whoever starts a server may be no human: OpenSSL would wait at the terminal."""
        password_requested.append(True)
        return ""

    try:
        context.load_cert_chain(cert, key, password)
    except (OSError, ValueError) as error:
        why = (
            "the key has a passphrase, which cannot be asked for here"
            if password_requested
            else _describe_error(error)
        )
        if cert == key and b"PRIVATE KEY-----" not in _read_file(cert):
            why = "there is no key in the same file: --tls-key-path says where it is"
        what = f"the certificate {cert} and its key cannot be used"
        raise CertificateError(f"{what}: {why}") from error


def _read_file(path: Path) -> bytes:
    """What stands in a file; nothing, if it is gone by now."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _describe_error(error: Exception) -> str:
    """OpenSSL's own words are for those who know its code."""
    reason = getattr(error, "reason", None)
    if reason == "KEY_VALUES_MISMATCH":
        return "the key is not that of the certificate"
    if reason in ("NO_START_LINE", "PEM_LIB") or (isinstance(error, ssl.SSLError) and not reason):
        return "they are not PEM files with a certificate and a key"
    return getattr(error, "strerror", None) or str(error)
