"""A client of the network in plain Python, written from docs/wire.md; it imports nothing of dordis.

Its state is in memory: it shows that the page suffices to take part, and is not a client for anybody's data.
"""

import asyncio
import base64
import hashlib
import re
import secrets
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import Encoding

from tests.network.plain_encoding import Fields, decode_frame, encode_frame
from tests.network.plain_secagg import Round

SUBPROTOCOL = "dordis.5.5"


class PlainClient:
    """A client with a key file and its certificate, who gives the same update in every round."""

    def __init__(self, base: str, key_file: Path, registry: dict[int, bytes], update: np.ndarray, login: str) -> None:
        self._base, self._registry, self._update, self._login = base, registry, update, login
        pem = key_file.read_text()
        found = re.search("-----BEGIN DORDIS SIGNING KEY-----\n(.*?)\n-----END", pem, re.DOTALL)
        self._signing = base64.b64decode(found[1])
        certificates = x509.load_pem_x509_certificates(key_file.with_suffix(".cert").read_bytes())
        self._certificate, authority = (one.public_bytes(Encoding.DER) for one in certificates)
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._tls.load_verify_locations(cadata=authority)
        if login == "mutual":
            self._tls.load_cert_chain(key_file.with_suffix(".cert"), key_file)
        self._machine = secrets.token_bytes(16)
        self.asked: list[str] = []
        """The types of all requests, in order."""
        self.sums: list[bytes] = []

    async def stay(self) -> Fields:
        """Log in, and answer requests until the server says goodbye."""
        async with aiohttp.ClientSession(auto_decompress=False) as session:
            async with self._socket(session, "/login", {}) as socket:
                welcome = await self._log_in(socket)
            assert hashlib.sha256(welcome["manifest"]).digest() == welcome["run"]
            self._me = welcome["client"]
            headers = {"Authorization": f"Bearer {welcome['token'].hex()}"}
            async with self._socket(session, "/control", headers) as socket:
                while True:
                    message = decode_frame(await socket.receive_bytes())
                    if message["type"] == "Shutdown":
                        return message
                    await self._reply_to(session, socket, headers, message)

    def _socket(self, session: aiohttp.ClientSession, path: str, headers: dict[str, str]) -> Any:
        return session.ws_connect(
            self._base + path, protocols=(SUBPROTOCOL,), headers=headers, ssl=self._tls, max_msg_size=64 << 20
        )

    async def _log_in(self, socket: aiohttp.ClientWebSocketResponse) -> Fields:
        challenge, answer = decode_frame(await socket.receive_bytes())["challenge"], b""
        if self._login == "challenge":
            shown = socket.get_extra_info("ssl_object").getpeercert(binary_form=True)
            both = hashlib.sha256(shown).digest() + hashlib.sha256(self._certificate).digest()
            signing = Ed25519PrivateKey.from_private_bytes(self._signing)
            answer = signing.sign(b"dordis/v1/login" + challenge + both) + self._certificate
        hello = {"type": "Hello", "answer": answer, "machine": self._machine, "run": b""}
        await socket.send_bytes(encode_frame(hello))
        return decode_frame(await socket.receive_bytes())

    async def _reply_to(self, session: Any, socket: Any, headers: dict[str, str], message: Fields) -> None:
        request, bulk = decode_frame(message["frame"]), b""
        if message["body"] is not None:
            name = message["body"]["digest"].hex()
            async with session.get(f"{self._base}/blobs/{name}", headers=headers, ssl=self._tls) as response:
                bulk = await response.read()
            assert hashlib.sha256(bulk).hexdigest() == name
        reply, vector = self.answer(request, bulk)
        body = None
        if vector:
            key = secrets.token_bytes(16)
            body = {"size": len(vector), "digest": key + AESGCM(key).encrypt(bytes(12), b"", vector)}
        sent = {"type": "Reply", "id": message["id"], "frame": encode_frame(reply), "body": body}
        await socket.send_bytes(encode_frame(sent))
        if vector:
            await self._upload(session, f"{self._base}/vectors/{message['id']}", headers, vector)

    async def _upload(self, session: Any, url: str, headers: dict[str, str], vector: bytes) -> None:
        """Send half of a vector, break off, ask how much has come, and send the rest."""
        half = len(vector) // 2

        async def broken_off() -> Any:
            yield vector[:half]
            raise ConnectionResetError

        try:
            whole = headers | {"Content-Length": str(len(vector))}
            async with session.put(url, data=broken_off(), headers=whole, ssl=self._tls):
                pass
        except (aiohttp.ClientError, ConnectionResetError):
            pass
        for _ in range(1000):
            async with session.head(url, headers=headers, ssl=self._tls) as response:
                offset = int(response.headers.get("Upload-Offset", "0"))
            part = {"Content-Range": f"bytes {offset}-{len(vector) - 1}/{len(vector)}"}
            async with session.put(url, data=vector[offset:], headers=headers | part, ssl=self._tls) as response:
                if response.status == 204:
                    return
                assert response.status in (404, 408, 416, 503), response.status
            await asyncio.sleep(0.05)
        raise AssertionError("the upload was not taken")

    def answer(self, request: Fields, bulk: bytes) -> tuple[Fields, bytes]:
        """Return the reply to a request, and its bulk."""
        kind, chunk, vector = request["type"], request.get("chunk"), b""
        self.asked.append(kind)
        match kind:
            case "Invite":
                self._invite, self._model = request, b""
                reply = {"type": "Accepted", "selected": True, "has_model": not request["model_bytes"], "proof": b""}
            case "SendModel":
                assert request["offset"] == len(self._model)
                self._model += bulk
                reply = {"type": "PieceReceived", "offset": request["offset"]}
            case "Train":
                named = b"dordis/v1/model" + self._invite["dtype"].encode() + self._model
                assert hashlib.sha256(named).digest() == self._invite["model"]
                reply = {"type": "Ready"}
            case "AdvertiseKeys":
                given = request["parameters"]
                assert (given["round"], given["model"]) == (self._invite["round"], self._invite["model"])
                self._round = Round(self._me, self._signing, self._registry, self._update, given)
                reply = self._round.advertise()
            case "ShareKeys":
                reply = self._round.share(request)
            case "DeliverShares":
                reply = self._round.deliver(request)
            case "PrepareInput":
                reply = {"type": "InputReady", "chunk": chunk}
            case "CollectInput":
                reply, vector = self._round.upload(chunk), self._round.vector(chunk)
            case "Agree":
                reply = self._round.agree(request)
            case "Unmask":
                reply = self._round.unmask(request)
            case "RemoveNoise":
                reply = self._round.remove(request)
            case "Dispatch":
                self.sums.append(bulk)
                reply = {"type": "Received", "chunk": chunk}
            case "Store":
                reply = {"type": "Stored", "chunk": chunk}
            case _:
                raise NotImplementedError(kind)
        return reply, vector
