"""A relay of connections that can cut all of them: a network that fails on cue."""

import contextlib
import socket
import threading


class Relay:
    """Pass connections to a port of this machine on; `cut` ends those that there are, `freeze` leaves them open."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._frozen = threading.Event()
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
        self._end(one, other)

    def freeze(self) -> None:
        """Pass nothing on any more, as a machine without power does, and tell nobody."""
        self._frozen.set()

    def cut(self) -> None:
        """End all connections, as a broken network does: both sides are told nothing but that."""
        with self._lock:
            ended, self._open = self._open, []
        self._end(*ended)

    def _end(self, *sockets: socket.socket) -> None:
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def close(self) -> None:
        """End everything."""
        self._listener.close()
        self.cut()
