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
EXPIRY_WARNING_SECONDS = 14 * 86_400.0  # a certificate that expires sooner is logged when loaded

_log = logging.getLogger(__name__)


class CertificateError(OSError):
    """A certificate or key that cannot be used. The message states the reason."""


class TlsCertificate:
    """A certificate with its chain and its key, which is in a separate file or in the same file.

    context: TLS context, the same object for the life of the server; new connections get the
        current certificate.
    expires_at: Expiry of the certificate in seconds since the epoch; NaN if it cannot be read.
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
        """Load the files again. The old certificate stays in use if the new one is invalid."""
        self._loaded_versions = self._file_versions()
        try:
            # Test in a new context: a certificate without its key would break the one in use.
            _load(_new_context(), self._cert, self._key)
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
        """Check for changes every few seconds until cancelled."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_SECONDS)
            self.reload_if_changed()

    def _read_expiry(self) -> float:
        """Return the expiry. An expired certificate is logged, and served as there is no other."""
        try:
            expiry = x509.load_pem_x509_certificate(_read_file(self._cert)).not_valid_after_utc
        except ValueError:  # OpenSSL, which serves the certificate, accepts more formats
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
    for flag, path in (("--tls-cert-path", cert), ("--tls-key-path", key)):
        if not path.is_file():
            raise CertificateError(f"{flag}: file not found: {path}")
    password_requested: list[bool] = []

    def password() -> str:
        """Return an empty password, so that OpenSSL does not prompt for one in the terminal."""
        password_requested.append(True)
        return ""

    try:
        context.load_cert_chain(cert, key, password)
    except (OSError, ValueError) as error:
        reason = (
            "the key is encrypted with a passphrase, which is not supported"
            if password_requested
            else _describe_error(error)
        )
        if cert == key and b"PRIVATE KEY-----" not in _read_file(cert):
            reason = "the file contains no private key; set --tls-key-path"
        subject = f"the certificate {cert} and its key cannot be used"
        raise CertificateError(f"{subject}: {reason}") from error


def _read_file(path: Path) -> bytes:
    """Read a file. Returns no bytes if it no longer exists."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _describe_error(error: Exception) -> str:
    """Describe an error of OpenSSL in plain terms; its own messages name internal functions."""
    reason = getattr(error, "reason", None)
    if reason == "KEY_VALUES_MISMATCH":
        return "the key does not match the certificate"
    if reason in ("NO_START_LINE", "PEM_LIB") or (isinstance(error, ssl.SSLError) and not reason):
        return "the files are not PEM files with a certificate and a key"
    return getattr(error, "strerror", None) or str(error)
