"""Real certificates for tests, signed by a test authority."""

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Issued:
    """The files of a certificate and its key."""

    cert: Path
    key: Path
    serial: int


class Authority:
    """Signs certificates for 127.0.0.1 and localhost. `file` is the CA file for clients."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named("Dovetail test authority")
        made = _begun(self._name, self._name, self._key)
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        made = made.add_extension(usage, critical=True)
        identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        made = made.add_extension(identifier, critical=False)
        self._identifier = identifier
        signed = made.sign(self._key, hashes.SHA256())
        self.file = folder / "authority.pem"
        self.file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, password: bytes | None = None, days: float = 90) -> Issued:
        """Issue a certificate in files of that name, which replace existing ones.

        It expires after so many days; with a negative number, it has expired.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        made = _begun(_named("localhost"), self._name, key, days)
        hosts = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
        made = made.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        authority = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._identifier)
        made = made.add_extension(authority, critical=False)
        signed = made.sign(self._key, hashes.SHA256())
        cert, file = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        cert.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        lock = serialization.BestAvailableEncryption(password) if password else None
        text = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            lock or serialization.NoEncryption(),
        )
        file.write_bytes(text)
        return Issued(cert, file, signed.serial_number)

    def trust(self) -> ssl.SSLContext:
        """Return a TLS context of a client that trusts this authority."""
        return ssl.create_default_context(cafile=str(self.file))


def serial_of(connected: ssl.SSLSocket | ssl.SSLObject) -> int:
    """Return the serial of the certificate that a server sent."""
    shown = connected.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown).serial_number


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: float = 90
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=2))
        .not_valid_after(now + timedelta(days=days))
    )
