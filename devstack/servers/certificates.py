"""The self-signed certificate that the local servers share.

One certificate is its own authority, so that a client trusts the server by being
handed a single file (`connection_verify=certificate.ca_path`).
"""

import ipaddress
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFETIME = timedelta(days=365)
_RENEW_BEFORE = timedelta(days=7)
_CLOCK_SKEW = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Certificate:
    """PEM files of a certificate for localhost, 127.0.0.1 and ::1."""

    ca_path: Path
    cert_path: Path
    key_path: Path

    def server_context(self) -> ssl.SSLContext:
        """A TLS context for a server that presents this certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert_path, self.key_path)
        return context


def ensure_certificate(folder: Path) -> Certificate:
    """The certificate kept in `folder`: the present one if it is good for another week, else a new one.

    The folder is created when missing. Processes that start at the same time on one folder
    may both write; give each its own folder when they must not share.
    """
    cert_path, key_path = folder / "localhost.pem", folder / "localhost.key"
    certificate = Certificate(ca_path=cert_path, cert_path=cert_path, key_path=key_path)
    if not _is_usable(certificate):
        folder.mkdir(parents=True, exist_ok=True)
        _write_new(certificate)
    return certificate


def _is_usable(certificate: Certificate) -> bool:
    try:
        loaded = x509.load_pem_x509_certificate(certificate.cert_path.read_bytes())
        certificate.server_context()  # refuses a key that does not belong to the certificate
    except (OSError, ValueError):  # missing, unreadable or not PEM; ssl.SSLError is an OSError
        return False
    return loaded.not_valid_after_utc - datetime.now(UTC) > _RENEW_BEFORE


def _write_new(certificate: Certificate) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    names: list[x509.GeneralName] = [
        x509.DNSName("localhost"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        x509.IPAddress(ipaddress.ip_address("::1")),
    ]
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + _LIFETIME)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    certificate.key_path.touch(mode=0o600)
    certificate.key_path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    certificate.cert_path.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
