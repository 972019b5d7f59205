"""A client that visits a server of assisted rounds, in plain Python, written from docs/wire.md without any dordis."""

import asyncio
import base64
import contextlib
import hashlib
import re
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from tests.network.plain_assisted import Contribution
from tests.network.plain_encoding import Fields, decode_frame, encode_frame
from tests.network.plain_secagg import encode_update

HEADERS = {"Dordis-Version": "dordis.5.5"}


class PlainVisitor:
    """A client with a key file and its certificate, who contributes the same update to every round."""

    def __init__(self, base: str, key_file: Path, me: int, update: np.ndarray) -> None:
        self._base, self._me, self._update = base, me, update
        found = re.search("-----BEGIN DORDIS SIGNING KEY-----\n(.*?)\n-----END", key_file.read_text(), re.DOTALL)
        self._signing = base64.b64decode(found[1])
        _, self._authority = x509.load_pem_x509_certificates(key_file.with_suffix(".cert").read_bytes())
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._tls.load_verify_locations(cadata=self._authority.public_bytes(Encoding.DER))
        self._tls.load_cert_chain(key_file.with_suffix(".cert"), key_file)
        self.taken: list[int] = []
        """Indices of the contributions that the server took."""

    async def stay(self) -> None:
        """Visit until the run is over, or the server has gone after a contribution."""
        tag = ""
        while True:
            known = {"If-None-Match": tag} if tag else {}
            try:
                status, headers, document = await self._request("GET", "/task", known)
            except aiohttp.ClientConnectionError:
                if self.taken:
                    return
                raise
            if status == 410:
                return
            if status == 200:
                tag = headers["ETag"]
                await self._contribute(self._read_task(document))
            await asyncio.sleep(0.1)

    def _read_task(self, document: bytes) -> Fields:
        signed = decode_frame(document)
        certificate = x509.load_der_x509_certificate(signed["certificate"])
        certificate.verify_directly_issued_by(self._authority)
        signature = ec.ECDSA(hashes.SHA256())
        certificate.public_key().verify(signed["signature"], b"dordis/v1/task" + signed["task"], signature)
        return decode_frame(signed["task"])

    async def _contribute(self, task: Fields) -> None:
        invite, given = task["invite"], decode_frame(task["opening"])["parameters"]
        status, _, manifest = await self._request("GET", "/manifest", {})
        assert hashlib.sha256(manifest).digest() == invite["round"][:32]
        status, _, model = await self._request("GET", f"/model/{invite['model'].hex()}", {})
        assert status == 404 or hashlib.sha256(b"dordis/v1/model<f4" + model).digest() == invite["model"]
        assert given["round"] == invite["round"]
        made = Contribution(self._me, self._signing, given)
        vector = made.vector(encode_update(self._update, given))
        frame, index = encode_frame(made.message(vector)), int.from_bytes(invite["round"][32:], "big")
        if await self._put(f"/contributions/{index}", len(frame).to_bytes(4, "big") + frame + vector):
            self.taken.append(index)

    async def _put(self, path: str, body: bytes) -> bool:
        """Put a contribution in two halves; tell whether it was taken or came too late."""
        half = len(body) // 2

        async def broken_off() -> Any:
            yield body[:half]
            raise ConnectionResetError

        with contextlib.suppress(aiohttp.ClientError, ConnectionResetError):
            await self._request("PUT", path, {"Content-Length": str(len(body))}, broken_off())
        for _ in range(1000):
            _, headers, _ = await self._request("HEAD", path, {})
            offset = int(headers.get("Upload-Offset", "0"))
            part = {"Content-Range": f"bytes {offset}-{len(body) - 1}/{len(body)}"} if offset else {}
            status, _, _ = await self._request("PUT", path, part, body[offset:])
            if status in (204, 410):
                return status == 204
            assert status in (400, 408, 416, 503), status
            await asyncio.sleep(0.05)
        raise AssertionError("the contribution was not taken")

    async def _request(self, method: str, path: str, headers: dict[str, str], data: Any = None) -> Any:
        """Return status, headers and body of one request, on a connection of its own."""
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True), auto_decompress=False) as session,
            session.request(
                method, self._base + path, headers=HEADERS | headers, data=data, ssl=self._tls, allow_redirects=False
            ) as response,
        ):
            return response.status, response.headers, await response.read()
