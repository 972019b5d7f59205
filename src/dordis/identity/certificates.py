"""X.509 certificates, which bind a TLS key to a server's host names, or to a client's id and identity.

TLS keys are on P-256, which all proxies and browsers support; the protocol's keys (Ed25519, ECVRF) never serve TLS.
The alternative name of a client is `urn:dordis:client:ID:SIGNING:VRF`.
"""

import hashlib
import ipaddress
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dordis.errors import InputError, LoginRefused
from dordis.protocol import ClientId

BACKDATED = timedelta(days=1)
"""A certificate is valid from this long before its creation, because clocks of other machines may be slow."""
DAYS, AUTHORITY_DAYS = 365, 3650
"""Days for which the certificates of a party, and of the authority itself, are valid."""
FINGERPRINT_BYTES = 16
"""Length of a member's fingerprint, by which people tell members apart; the registry root commits to the full keys."""
_URN = re.compile(r"urn:dordis:client:(0|[1-9][0-9]{0,18}):([0-9a-f]{64}):([0-9a-f]{64})")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

TlsKey = ec.EllipticCurvePrivateKey
AlternativeNames = list[x509.GeneralName]


class Identity(msgspec.Struct, frozen=True):
    """A client's public keys: Ed25519 for signatures, ECVRF for selection."""

    signing: bytes
    vrf: bytes

    def fingerprint(self, client: ClientId) -> str:
        """Return a short hash, in hex, of these keys and the id of their client: the fingerprint of a member."""
        entry = client.to_bytes(8, "big") + self.signing + self.vrf
        return hashlib.sha256(b"dordis/v1/member" + entry).digest()[:FINGERPRINT_BYTES].hex()


@dataclass(frozen=True)
class CertifiedClient:
    """The client that a certificate names: its id, its public keys, and the SHA-256 of its TLS key in hex."""

    client: ClientId
    identity: Identity
    tls: str


def new_tls_key() -> TlsKey:
    """Return a new private key on P-256, drawn by OpenSSL."""
    return ec.generate_private_key(ec.SECP256R1())


def client_names(client: ClientId, identity: Identity) -> AlternativeNames:
    """Return the alternative names for a client's certificate: one name, with the client's id and its public keys."""
    return [x509.UniformResourceIdentifier(f"urn:dordis:client:{client}:{identity.signing.hex()}:{identity.vrf.hex()}")]


def server_name(host: str) -> x509.GeneralName:
    """Return an alternative name for a server's certificate, from a host name or an IP address."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError:
        raise InputError(f"'{host}' is no host name: write it in ASCII letters, or give an IP address") from None


def new_authority(key: TlsKey, name: str, now: datetime) -> x509.Certificate:
    """Return the self-signed certificate of an authority, which may sign the certificates of clients and servers."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    usage = _usage(key_cert_sign=True, digital_signature=True)
    return (
        _builder(subject, subject, key.public_key(), now, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )


def new_certificate(
    authority: x509.Certificate,
    authority_key: TlsKey,
    key: ec.EllipticCurvePublicKey,
    name: str,
    names: AlternativeNames,
    now: datetime,
    days: int = DAYS,
    *,
    server: bool = False,
) -> x509.Certificate:
    """Return a certificate for the public TLS key `key` of the party `name`, signed with `authority_key`.

    `names` are its alternative names.  If `server` is true only a server can use it, otherwise only a client.
    """
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    purpose = ExtendedKeyUsageOID.SERVER_AUTH if server else ExtendedKeyUsageOID.CLIENT_AUTH
    signer = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return (
        _builder(subject, authority.subject, key, now, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(signer), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(authority_key, hashes.SHA256())
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    """Return a builder for a certificate that is valid from `BACKDATED` before `now` until `days` days after `now`."""
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def certified_client(certificate: x509.Certificate) -> CertifiedClient | None:
    """Return the client that a certificate names; None if it is the certificate of a server."""
    for name in alternative_names(certificate).get_values_for_type(x509.UniformResourceIdentifier):
        if match := _URN.fullmatch(name):
            identity = Identity(bytes.fromhex(match[2]), bytes.fromhex(match[3]))
            return CertifiedClient(ClientId(int(match[1])), identity, tls_hash(tls_public_key(certificate)))
    return None


def alternative_names(signed: x509.Certificate | x509.CertificateSigningRequest) -> x509.SubjectAlternativeName:
    """Return the alternative names in a certificate or request; empty if there are none."""
    try:
        return signed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return x509.SubjectAlternativeName([])


def subject_name(signed: x509.Certificate | x509.CertificateSigningRequest) -> str:
    """Return the common name of the party in a certificate or request; empty if there is none."""
    return next((str(one.value) for one in signed.subject.get_attributes_for_oid(NameOID.COMMON_NAME)), "")


def tls_public_key(certificate: x509.Certificate) -> ec.EllipticCurvePublicKey:
    """Return the TLS key of a certificate; raise LoginRefused if it is not on an elliptic curve."""
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise LoginRefused(f"the certificate of '{subject_name(certificate)}' is not one that dordis makes")
    return key


def tls_hash(key: ec.EllipticCurvePublicKey) -> str:
    """Return the SHA-256 of a public TLS key, in hex."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(key.public_bytes(serialization.Encoding.DER, form)).hexdigest()


def to_pem(*certificates: x509.Certificate) -> bytes:
    """Return certificates in PEM, one after another."""
    return b"".join(one.public_bytes(serialization.Encoding.PEM) for one in certificates)


def to_der(certificate: x509.Certificate) -> bytes:
    """Return a certificate in DER, the encoding in which it is sent over the network."""
    return certificate.public_bytes(serialization.Encoding.DER)


def from_der(data: bytes) -> x509.Certificate:
    """Return the certificate that `data` encodes in DER; raise LoginRefused if `data` is malformed."""
    try:
        return x509.load_der_x509_certificate(data)
    except ValueError:
        raise LoginRefused("this is not a certificate") from None


def load_certificate(path: Path) -> x509.Certificate:
    """Return the first certificate of a PEM file; raise InputError if it cannot be read."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise InputError(f"cannot read the certificate {path}: {error.strerror}") from None
    except ValueError:
        raise InputError(f"{path} is not a certificate in PEM") from None


def fingerprint(data: bytes) -> str:
    """Return a fingerprint that people can compare by telephone: half of the SHA-256 of `data`, in groups of four.

    >>> fingerprint(b"")
    'e3b0-c442-98fc-1c14-9afb-f4c8-996f-b924'
    """
    digits = hashlib.sha256(data).hexdigest()[:32]
    return "-".join(digits[i : i + 4] for i in range(0, len(digits), 4))


def check_name(name: str) -> None:
    """Raise InputError unless a party's name has up to 63 ASCII letters, digits and . _ -, first a letter or digit."""
    if not _NAME.fullmatch(name):
        raise InputError(f"a party's name is made of up to 63 letters, digits and . _ -, not '{name}'")


def check_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> None:
    """Raise LoginRefused unless a certificate was signed with the key of the certificate `authority`."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        raise LoginRefused(
            f"the certificate of '{subject_name(certificate)}' was not signed by the authority "
            f"'{subject_name(authority)}' ({fingerprint(to_der(authority))}): it is of another federation"
        ) from None


def days_left(certificate: x509.Certificate, now: datetime) -> int:
    """Return the whole days until a certificate expires; negative if it has expired."""
    return (certificate.not_valid_after_utc - now).days


def check_valid_at(certificate: x509.Certificate, now: datetime) -> None:
    """Raise LoginRefused if a certificate is not valid yet, or has expired."""
    name, begins, ends = subject_name(certificate), certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begins:
        raise LoginRefused(
            f"the certificate of '{name}' is not valid before {begins:%Y-%m-%d %H:%M} UTC, and the clock here says "
            f"{now:%Y-%m-%d %H:%M}: set the clock"
        )
    if now > ends:
        raise LoginRefused(
            f"the certificate of '{name}' expired on {ends:%Y-%m-%d}: ask the authority for another (dordis keys issue)"
        )


def check_purpose(certificate: x509.Certificate, *, server: bool = False) -> None:
    """Raise LoginRefused unless a certificate is for a server (if `server` is true) or for a client (otherwise)."""
    wanted = ExtendedKeyUsageOID.SERVER_AUTH if server else ExtendedKeyUsageOID.CLIENT_AUTH
    try:
        usages = list(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    except x509.ExtensionNotFound:
        usages = []
    if wanted not in usages:
        kind = "server" if server else "client"
        raise LoginRefused(f"the certificate of '{subject_name(certificate)}' is not one of a {kind}")
