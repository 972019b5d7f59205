"""A client that visits a server of assisted rounds, in plain Python, written from docs/wire.md without any dordis.

Its author had not seen the code of dordis.  HTTPS and JSON are those of the standard library.
"""

import base64
import contextlib
import hashlib
import http.client
import json
import re
import ssl
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from tests.network.plain_assisted import Contribution
from tests.network.plain_encoding import Fields, decode_frame, encode_frame
from tests.network.plain_secagg import be8, encode_update, lengths, sha

VERSION = "dordis.5.5"
ECDSA = ec.ECDSA(hashes.SHA256())
PAUSE = 0.1
"""Seconds between two requests for a task."""


class PlainVisitor:
    """A client with a key file and its certificate, who contributes the same update to every round."""

    def __init__(self, base: str, key_file: Path, registry: Path, me: int, update: np.ndarray) -> None:
        self._address, self._me, self._update = urlsplit(base).netloc, me, update
        found = re.search("-----BEGIN DORDIS SIGNING KEY-----\n(.*?)\n-----END", key_file.read_text(), re.DOTALL)
        self._signing = base64.b64decode(found[1])
        _, self._authority = x509.load_pem_x509_certificates(key_file.with_suffix(".cert").read_bytes())
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._tls.minimum_version = ssl.TLSVersion.TLSv1_3
        self._tls.load_verify_locations(cadata=self._authority.public_bytes(Encoding.DER))
        self._tls.load_cert_chain(key_file.with_suffix(".cert"), key_file)
        self._members = self._read_registry(json.loads(registry.read_text()))
        self._manifest: Fields = {}
        self.taken: list[int] = []
        """Indices of the contributions that the server took."""

    def _read_registry(self, file: Fields) -> dict[int, tuple[bytes, bytes]]:
        """Return the signing and VRF key of every member."""
        signed = json.dumps(file["membership"], separators=(",", ":"), ensure_ascii=False).encode()
        key = self._authority.public_key()
        key.verify(bytes.fromhex(file["signature"]), b"dordis/v1/membership" + signed, ECDSA)
        members = file["membership"]["members"]
        return {int(u): (bytes.fromhex(m["signing"]), bytes.fromhex(m["vrf"])) for u, m in members.items()}

    def stay(self) -> None:
        """Visit until the run is over, or the server has gone after a contribution."""
        tag = ""
        while True:
            try:
                status, headers, document = self._request("GET", "/task", {"If-None-Match": tag} if tag else {})
            except OSError:  # with TLS, a server that ends may cut a request in other ways than ConnectionError
                if self.taken:
                    return
                raise
            if status == 410:
                return
            if status == 200:
                tag = headers["ETag"]
                self._contribute(self._read_task(document), time.monotonic())
            time.sleep(PAUSE)

    def _read_task(self, document: bytes) -> Fields:
        signed = decode_frame(document)
        certificate = x509.load_der_x509_certificate(signed["certificate"])
        certificate.verify_directly_issued_by(self._authority)
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert ExtendedKeyUsageOID.SERVER_AUTH in usage
        assert certificate.not_valid_before_utc <= datetime.now(UTC) <= certificate.not_valid_after_utc
        certificate.public_key().verify(signed["signature"], b"dordis/v1/task" + signed["task"], ECDSA)
        return decode_frame(signed["task"])

    def _read_manifest(self, run: bytes) -> None:
        """Fetch the manifest of the run, and compare members and registry with our own."""
        _, _, data = self._request("GET", "/manifest")
        assert hashlib.sha256(data).digest() == run
        self._manifest = json.loads(data)
        helpers = self._manifest["assistance"]["helpers"]
        clients = sorted(set(self._members) - set(helpers))
        lines = {u: be8(u) + b"".join(self._members[u]) for u in self._members}
        prints = {str(u): sha(b"dordis/v1/member", lines[u]).hex()[:32] for u in clients}
        assert prints == self._manifest["members"]
        ordered = [lines[u] for u in [*clients, *sorted(helpers)]]
        root = sha(b"dordis/v1/registry-of-roles", be8(len(clients)), *ordered)
        assert root.hex() == self._manifest["registry"]

    def _check_helpers(self, given: Fields) -> None:
        """Check the helpers of the parameters and their keys."""
        run, index, f = given["round"][:32], int.from_bytes(given["round"][32:], "big"), given["faulty"]
        m = len(given["helpers"])
        assert sorted(given["helpers"]) == sorted(self._manifest["assistance"]["helpers"])
        assert 1 <= f < m
        assert given["can_abort"] or given["mode"] != "malicious" or m >= 3 * f + 1
        assert given["no_base"] or 2 * given["n_min"] >= given["n_max"]
        keys = {helper: key for helper, key in given["helpers"].items() if key is not None}
        assert len(keys) >= (m + f) // 2 + 1
        assert len({key[4] for key in keys.values()}) == len(keys)
        for helper, (epoch, first, last, not_after, key, signature) in keys.items():
            parts = (run, be8(epoch), be8(first), be8(last), be8(not_after), key)
            statement = lengths(b"dordis/v1/statement/assisted-epoch", be8(1), *parts)
            Ed25519PublicKey.from_public_bytes(self._members[helper][0]).verify(signature, statement)
            assert first <= index <= last
            assert not_after > time.time()

    def _contribute(self, task: Fields, fetched: float) -> None:
        invite, given = task["invite"], decode_frame(task["opening"])["parameters"]
        assert (given["round"], given["model"]) == (invite["round"], invite["model"])
        if not self._manifest:
            self._read_manifest(invite["round"][:32])
        assert invite["registry"].hex() == self._manifest["registry"]
        self._check_helpers(given)
        self._fetch_model(invite)
        made = Contribution(self._me, self._signing, given)
        vector = made.vector(encode_update(self._update, given))
        frame, index = encode_frame(made.message(vector)), int.from_bytes(invite["round"][32:], "big")
        train_seconds = self._manifest["config"]["deployment"]["train_seconds"] or 0.0
        time.sleep(max(0.0, fetched + train_seconds - time.monotonic()))
        if self._put(f"/contributions/{index}", len(frame).to_bytes(4, "big") + frame + vector):
            self.taken.append(index)

    def _fetch_model(self, invite: Fields) -> None:
        """Download the model in two halves."""
        if not invite["model_bytes"]:
            return
        path, half = f"/model/{invite['model'].hex()}", invite["model_bytes"] // 2
        status, _, model = self._request("GET", path)
        assert status == 200
        assert sha(b"dordis/v1/model", invite["dtype"].encode(), model) == invite["model"]
        if half:
            status, headers, rest = self._request("GET", path, {"Range": f"bytes={half}-"})
            assert (status, rest) == (206, model[half:])
            assert headers["Content-Range"] == f"bytes {half}-{len(model) - 1}/{len(model)}"

    def _put(self, path: str, body: bytes) -> bool:
        """Put a contribution in two halves; tell whether it was taken or came too late."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            self._request("PUT", path, {"Content-Length": str(len(body))}, body[: len(body) // 2])
        for _ in range(1000):
            _, headers, _ = self._request("HEAD", path)
            offset = int(headers.get("Upload-Offset", "0"))
            part = {"Content-Range": f"bytes {offset}-{len(body) - 1}/{len(body)}"} if offset else {}
            status, _, _ = self._request("PUT", path, part, body[offset:])
            if status in (204, 410):
                return status == 204
            assert status in (400, 408, 416, 503), status
            time.sleep(PAUSE)
        raise AssertionError("the contribution was not taken")

    def _request(self, method: str, path: str, headers: dict[str, str] | None = None, body: bytes = b"") -> Any:
        """Return status, headers and body of one request, on a connection of its own.

        A body that is shorter than its Content-Length breaks off.
        """
        given = {"Dordis-Version": VERSION} | ({"Content-Length": str(len(body))} if body else {}) | (headers or {})
        connection = http.client.HTTPSConnection(self._address, context=self._tls, timeout=60)
        with contextlib.closing(connection):
            connection.putrequest(method, path, skip_accept_encoding=True)
            for name, value in given.items():
                connection.putheader(name, value)
            connection.endheaders(body or None)
            if len(body) < int(given.get("Content-Length", "0")):
                raise ConnectionAbortedError
            response = connection.getresponse()
            return response.status, response.headers, response.read()
