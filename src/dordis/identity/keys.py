"""A party's key file, which only the owner of the file can read, and its certificate file.

The key file `alice.key` is in PEM: first the TLS key, because OpenSSL uses the first key of a file, then the keys for
signatures and for the VRF.  The certificate file `alice.cert`, which the authority makes, is in PEM too: the party's
certificate, then the authority's.
"""

import base64
import re
import secrets
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from dordis.crypto import signature, vrf
from dordis.durable_files import write_new
from dordis.errors import InputError, explain_os_errors
from dordis.identity import certificates
from dordis.identity.certificates import CertifiedClient, Identity, TlsKey
from dordis.protocol import ClientId

KEY, CERTIFICATE, REQUEST = ".key", ".cert", ".request"
"""Suffixes of a party's key file, certificate file and request file."""
_BLOCK = re.compile(r"-----BEGIN ([A-Z ]+)-----\n(.*?)\n-----END \1-----\n", re.DOTALL)
_TLS, _SIGNING, _VRF = "PRIVATE KEY", "DORDIS SIGNING KEY", "DORDIS VRF KEY"


@dataclass(frozen=True, repr=False)
class Keys:
    """A client's private keys apart from its TLS key: one for signatures, one for the VRF.

    >>> Keys.generate()
    <Keys>
    """

    signing: bytes
    vrf: bytes

    @classmethod
    def generate(cls, entropy: Callable[[int], bytes] = secrets.token_bytes) -> "Keys":
        """Return two new private keys."""
        return cls(signature.generate(entropy), vrf.generate(entropy))

    def __post_init__(self) -> None:
        if self.signing == self.vrf:
            raise InputError("one private key must not serve two purposes: draw another")

    def __repr__(self) -> str:
        return "<Keys>"

    def identity(self) -> Identity:
        """Return the public keys that belong to these private keys, as the registry lists them."""
        return Identity(signature.public_key(self.signing), vrf.public_key(self.vrf))


@dataclass(frozen=True, repr=False)
class PrivateKeys:
    """The private keys in a key file: the TLS key, and a client's keys for signatures and VRF (None for a server)."""

    tls: TlsKey
    keys: Keys | None

    def __repr__(self) -> str:
        return "<PrivateKeys>"

    def to_pem(self) -> bytes:
        """Return the content of a key file with these keys."""
        tls = self.tls.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return tls if self.keys is None else tls + _block(_SIGNING, self.keys.signing) + _block(_VRF, self.keys.vrf)


@dataclass(frozen=True)
class Credentials:
    """What a party needs for TLS: its key file and certificate file, its certificate and that of the authority."""

    key_file: Path
    certificate_file: Path
    certificate: x509.Certificate
    authority: x509.Certificate

    @property
    def name(self) -> str:
        """Return the name of the party in its certificate."""
        return certificates.subject_name(self.certificate)


@dataclass(frozen=True)
class ClientCredentials(Credentials):
    """What a client needs for TLS, with the client's id and its private keys for signatures and VRF."""

    client: ClientId
    keys: Keys = field(repr=False)


def save_keys(path: Path, keys: PrivateKeys) -> None:
    """Write private keys to a new file that only its owner can read; raise InputError if the file exists."""
    check_key_file_name(path)
    try:
        write_new(path, keys.to_pem())
    except FileExistsError:
        raise InputError(f"there is a key already at {path}: to replace it, see dordis keys rotate") from None
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None


def load_keys(path: Path) -> PrivateKeys:
    """Return the keys in a key file; raise InputError if it is missing, malformed, or others can read or write it."""
    check_private(path)
    blocks = {match[1]: match[0] for match in _BLOCK.finditer(_read(path).decode("ascii", "replace"))}
    try:
        tls = serialization.load_pem_private_key(blocks[_TLS].encode(), password=None)
        contents = (blocks[kind].splitlines()[1] for kind in (_SIGNING, _VRF) if kind in blocks)
        drawn = [base64.b64decode(content, validate=True) for content in contents]
        if not isinstance(tls, ec.EllipticCurvePrivateKey) or len(drawn) not in (0, 2):
            raise InputError(f"{path} is not a key file of dordis: make one with dordis keys request")
        return PrivateKeys(tls, Keys(*drawn) if drawn else None)
    except (KeyError, ValueError, TypeError):  # the error does not quote the file: its content is secret
        raise InputError(f"{path} is not a key file of dordis: make one with dordis keys request") from None


def load_client_credentials(path: Path, now: datetime) -> ClientCredentials:
    """Return the credentials of a client from its key file `path` and the certificate file beside it.

    Raise InputError or LoginRefused if the files do not belong together or the certificate is not valid.
    """
    private, common = _load(path, now, server=False)
    bound = certificates.certified_client(common.certificate)
    if private.keys is None or bound is None:
        raise InputError(f"{path} is a server's: give the key file of a client")
    check_bound(private.keys, bound, common.certificate_file)
    return ClientCredentials(
        common.key_file, common.certificate_file, common.certificate, common.authority, bound.client, private.keys
    )


def load_server_credentials(path: Path, now: datetime) -> Credentials:
    """Return the credentials of a server from its key file `path` and the certificate file beside it.

    Raise InputError or LoginRefused if the files do not belong together or the certificate is not valid.
    """
    return _load(path, now, server=True)[1]


def _load(path: Path, now: datetime, *, server: bool) -> tuple[PrivateKeys, Credentials]:
    private, file = load_keys(path), certificate_file(path)
    certificate, authority = read_certificates(file)
    check_same_key(private.tls, certificate, path, file)
    certificates.check_issued_by(certificate, authority)
    certificates.check_purpose(certificate, server=server)
    certificates.check_valid_at(certificate, now)
    return private, Credentials(path, file, certificate, authority)


def certificate_file(key_file: Path) -> Path:
    """Return the path of the certificate file beside a key file; raise InputError if either file is missing."""
    file = key_file.with_suffix(CERTIFICATE)
    if not key_file.exists():
        raise InputError(f"there is no key file {key_file}: make one with dordis keys request, and have it approved")
    if not file.exists():
        raise InputError(
            f"there is no {file}: have {key_file.with_suffix(REQUEST)} approved, and save the certificate there"
        )
    return file


def read_certificates(path: Path) -> tuple[x509.Certificate, x509.Certificate]:
    """Return the certificates in a party's certificate file: the party's and the authority's.

    Raise InputError unless the file has exactly two certificates.
    """
    data = _read(path)
    try:
        certificate, authority = x509.load_pem_x509_certificates(data)
    except ValueError:
        raise InputError(f"{path} is not what dordis keys approve writes: ask for it again") from None
    return certificate, authority


def check_key_file_name(path: Path) -> None:
    """Raise InputError unless a key file ends with `.key`: names of a party's files differ only in the suffix."""
    if path.suffix != KEY:
        raise InputError(f"a key file ends with {KEY}: {path.name}{KEY}, say, not {path.name}")


def check_private(path: Path) -> None:
    """Raise InputError if a key file is missing, or if anybody but the owner of the file can read or write it."""
    with explain_os_errors(f"read the key file {path}"):
        mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        raise InputError(f"{path} is not a file: give the key file that dordis keys request made")
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InputError(
            f"others can read or write {path}: chmod 600 {path}, and rotate the keys if somebody may have read it"
        )


def check_same_key(tls: TlsKey, certificate: x509.Certificate, key_file: Path, file: Path) -> None:
    """Raise InputError unless a certificate is for the TLS key of the key file."""
    if certificate.public_key() != tls.public_key():
        raise InputError(f"{file} is not for the key in {key_file}: ask the authority for the certificate of this key")


def check_bound(keys: Keys, bound: CertifiedClient, file: Path) -> None:
    """Raise InputError unless `bound`, from a client's certificate, has the public keys that belong to `keys`."""
    if keys.identity() != bound.identity:
        raise InputError(
            f"{file} names other signing or VRF keys than the key file has: ask the authority for the right one"
        )


def _block(kind: str, content: bytes) -> bytes:
    return f"-----BEGIN {kind}-----\n{base64.b64encode(content).decode()}\n-----END {kind}-----\n".encode()


def _read(path: Path) -> bytes:
    with explain_os_errors(f"read {path}"):
        return path.read_bytes()
