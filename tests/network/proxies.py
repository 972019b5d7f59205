"""Proxies between clients and a server: one that fails on cue, and one of a company that knows CONNECT only."""

import asyncio
import contextlib
import socket
import threading


class FaultyProxy:
    """Forward connections to a local port, until they are cut or frozen."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._frozen, self._doubled = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    near.close()
                    continue
                with self._lock:
                    self._open += [near, far]
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                if not self._frozen.is_set():
                    other.sendall(data)
                if self._doubled.is_set():
                    self._doubled.clear()
                    other.sendall(data)
        self._end(one, other)

    def freeze(self) -> None:
        """Forward nothing from now on, and leave the connections open: the other machine has lost power."""
        self._frozen.set()

    def duplicate(self) -> None:
        """Forward the next bytes of any connection twice."""
        self._doubled.set()

    def cut(self) -> None:
        """Close all connections without notice: the network is broken."""
        with self._lock:
            ended, self._open = self._open, []
        self._end(*ended)

    def _end(self, *sockets: socket.socket) -> None:
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def close(self) -> None:
        """Stop listening, and close all connections."""
        self._listener.close()
        self.cut()


class ConnectProxy:
    """Forward every connection to one local port, whatever address it asks for, and record these addresses."""

    def __init__(self, target: int) -> None:
        self._target, self.asked = target, []
        self.port = 0

    async def start(self) -> None:
        """Start to listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening."""
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.asked.append(head.split(b"\r\n")[0].decode())
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(self._pass_on(reader, back), self._pass_on(there, writer))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()
