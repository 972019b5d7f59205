"""Requests for a certificate: public, signed by every key that they ask to have certified.

A request is an X.509 request with a client's public keys, or a server's host names, in it; its TLS key signs it as
X.509 has it, the signing key by a signature, the VRF key by a proof.  One that replaces keys is signed by those, too.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from dordis.crypto import signature, vrf
from dordis.errors import CryptoError, InputError
from dordis.federation import certificates
from dordis.federation.certificates import Names, alternative_names, fingerprint, subject_of
from dordis.federation.identity import PrivateKeys
from dordis.federation.registry import Identity, Keys

LIMIT = 64 << 10
"""Bytes of the largest request that is read."""
_URN = re.compile(r"urn:dordis:identity:([0-9a-f]{64}):([0-9a-f]{64})")
_SIGNED, _PROVED, _REPLACED = (b"dordis/v1/request/" + use for use in (b"signing", b"vrf", b"replaced"))


@dataclass(frozen=True)
class Requested:
    """What a request asks for; `replaces` is the signing key of before, where there was one."""

    name: str
    tls: ec.EllipticCurvePublicKey
    identity: Identity | None
    hosts: Names
    replaces: bytes | None
    fingerprint: str


class RequestFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request as it stands in its file; signatures are in hex."""

    request: str
    signing: str = ""
    vrf: str = ""
    replaces: str = ""
    replaced: str = ""
    format: Literal["dordis request 1"] = "dordis request 1"


def new_request(name: str, private: PrivateKeys, hosts: Sequence[str] = (), replaces: Keys | None = None) -> bytes:
    """Ask for a certificate: of a client, or of a server with these hosts."""
    certificates.check_name(name)
    keys = private.keys
    names = certificates.host_names(hosts) if keys is None else [_identity_name(keys.identity())]
    asked = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(private.tls, hashes.SHA256())
    )
    data = _der(asked)
    file = RequestFile(
        asked.public_bytes(serialization.Encoding.PEM).decode(),
        "" if keys is None else signature.sign(keys.signing, _SIGNED + data).hex(),
        "" if keys is None else vrf.prove(keys.vrf, _PROVED + data).hex(),
        "" if replaces is None else signature.public(replaces.signing).hex(),
        "" if replaces is None else signature.sign(replaces.signing, _REPLACED + data).hex(),
    )
    return msgspec.json.format(msgspec.json.encode(file), indent=2) + b"\n"


def read_request(data: bytes) -> Requested:
    """Return what a request asks for, if whoever asks has all of the keys."""
    if len(data) > LIMIT:
        raise InputError(f"a request has at most {LIMIT} bytes")
    try:
        file = msgspec.json.decode(data, type=RequestFile)
        asked = x509.load_pem_x509_csr(file.request.encode())
        names = alternative_names(asked)
    except (ValueError, TypeError, RecursionError, msgspec.DecodeError, x509.DuplicateExtension):
        raise InputError("this is not a request: dordis keys request writes one") from None
    tls = check_tls_key(asked)
    certificates.check_name(subject_of(asked))
    identity = _identity_in(names)
    hosts: Names = [name for name in names if isinstance(name, x509.DNSName | x509.IPAddress)]
    if (identity is None) == (not hosts):
        raise InputError("a request is for a client with its keys, or for a server with its hosts")
    if identity is not None:
        check_possession(identity, file, _der(asked))
    replaces = _from_hex(file.replaces) or None
    if replaces is not None:
        check_replaced(replaces, file, _der(asked))
    return Requested(subject_of(asked), tls, identity, hosts, replaces, fingerprint(_der(asked)))


def check_tls_key(asked: x509.CertificateSigningRequest) -> ec.EllipticCurvePublicKey:
    """Return the TLS key, which is on P-256 and signed the request."""
    key = asked.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise InputError("the TLS key of a request is on the curve P-256")
    if not asked.is_signature_valid:
        raise InputError("this request was altered: its TLS key did not sign it")
    return key


def check_possession(identity: Identity, file: RequestFile, data: bytes) -> None:
    """Whoever asks has the signing key and the VRF key: nobody registers somebody else's."""
    try:
        signature.validate(identity.signing)
        signature.verify(identity.signing, _SIGNED + data, _from_hex(file.signing))
        vrf.verify(identity.vrf, _PROVED + data, _from_hex(file.vrf))
    except CryptoError:
        raise InputError("this request was altered, or asks for keys that its maker does not have") from None


def check_replaced(replaces: bytes, file: RequestFile, data: bytes) -> None:
    """The owner of the keys that are replaced asks for that."""
    try:
        signature.verify(replaces, _REPLACED + data, _from_hex(file.replaced))
    except CryptoError:
        raise InputError("this request replaces keys that its maker does not have") from None


def _identity_name(identity: Identity) -> x509.GeneralName:
    return x509.UniformResourceIdentifier(f"urn:dordis:identity:{identity.signing.hex()}:{identity.vrf.hex()}")


def _identity_in(names: x509.SubjectAlternativeName) -> Identity | None:
    for name in names.get_values_for_type(x509.UniformResourceIdentifier):
        if match := _URN.fullmatch(name):
            return Identity(bytes.fromhex(match[1]), bytes.fromhex(match[2]))
    return None


def _der(asked: x509.CertificateSigningRequest) -> bytes:
    return asked.public_bytes(serialization.Encoding.DER)


def _from_hex(text: str) -> bytes:
    with suppress(ValueError):
        return bytes.fromhex(text)
    return b""
