"""The TLS certificate of the server, reloaded when it is renewed."""

import asyncio
import logging
import ssl
import time
from collections.abc import Callable
from math import nan
from pathlib import Path

from cryptography import x509

from dovetail.settings.file_version import FileVersion, get_file_version

CHECK_INTERVAL_SECONDS = 5.0
EXPIRY_WARNING_SECONDS = 14 * 86_400.0  # warn when loading one that expires sooner

_log = logging.getLogger(__name__)


class CertificateError(OSError):
    """A certificate and key that cannot be used, and why."""


class TlsCertificate:
    """A certificate with its chain and key: the key in a file of its own, or in the same one.

    context: The same object for the life of the server; new connections get a renewed certificate.
    expires_at: When clients begin to reject it, in seconds since the epoch; NaN if unreadable.
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
        """Load the files again. If they do not match each other, keep the old certificate."""
        self._loaded_versions = self._file_versions()
        try:
            _load(
                _new_context(), self._cert, self._key
            )  # test first: half of a pair would break the context in use
            _load(self.context, self._cert, self._key)
        except CertificateError as error:
            _log.error("certificate_rejected", extra={"fields": {"reason": str(error)}})
            return
        _log.info("certificate_reloaded", extra={"fields": {"file": str(self._cert)}})
        self.expires_at = self._read_expiry()

    def reload_if_changed(self) -> None:
        """Load the files again if they have changed."""
        if self._file_versions() != self._loaded_versions:
            self.reload()

    async def watch(self) -> None:
        """Check for changes every few seconds, for as long as the server runs."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_SECONDS)
            self.reload_if_changed()

    def _read_expiry(self) -> float:
        """Return when it expires. An expired one is served, as there is none better, and logged."""
        try:
            expiry = x509.load_pem_x509_certificate(_read_file(self._cert)).not_valid_after_utc
        except ValueError:  # OpenSSL accepts more formats, and it is what serves it
            return nan
        seconds_left = expiry.timestamp() - self._clock()
        if seconds_left < EXPIRY_WARNING_SECONDS:
            event = "certificate_expired" if seconds_left <= 0 else "certificate_expiring"
            fields = {"file": str(self._cert), "expires_at": f"{expiry:%Y-%m-%d %H:%M} UTC"}
            _log.warning(event, extra={"fields": fields})
        return expiry.timestamp()

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
        """Do not wait for a password at the terminal, as OpenSSL would."""
        password_requested.append(True)
        return ""

    try:
        context.load_cert_chain(cert, key, password)
    except (OSError, ValueError) as error:
        reason = (
            "the key has a passphrase, which cannot be asked for here"
            if password_requested
            else _describe_error(error)
        )
        if cert == key and b"PRIVATE KEY-----" not in _read_file(cert):
            reason = "there is no key in the same file: --tls-key-path says where it is"
        subject = f"the certificate {cert} and its key cannot be used"
        raise CertificateError(f"{subject}: {reason}") from error


def _read_file(path: Path) -> bytes:
    """Read a file; empty if it is gone by now."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _describe_error(error: Exception) -> str:
    """Describe an error of OpenSSL, whose own messages are for those who know its code."""
    reason = getattr(error, "reason", None)
    if reason == "KEY_VALUES_MISMATCH":
        return "the key is not that of the certificate"
    if reason in ("NO_START_LINE", "PEM_LIB") or (isinstance(error, ssl.SSLError) and not reason):
        return "they are not PEM files with a certificate and a key"
    return getattr(error, "strerror", None) or str(error)
