"""A TCP proxy in front of a server, whose connections can be cut."""

import socket
import threading
from contextlib import suppress
from urllib.parse import urlsplit


class Proxy:
    """Forwards to the server of a URI.

    Attributes:
        uri: the same database through the proxy.
        cut_after: close the connection that brings the bytes sent to the server to this many more;
            None: never.
        cuts: how often that happened.
    """

    def __init__(self, uri):
        host = urlsplit(uri).netloc.rpartition("@")[2]
        self._server = (host.partition(":")[0], int(host.partition(":")[2]))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pairs = []
        self._lock = threading.Lock()
        self._open = True
        self.uri = uri.replace(host, f"127.0.0.1:{self._listener.getsockname()[1]}")
        self.cut_after = None
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def down(self):
        """Cut all connections and let no new one live, until `up`."""
        self._open = False
        with self._lock:
            for pair in self._pairs:
                _cut(pair)

    def up(self):
        self._open = True

    def close(self):
        self.down()
        self._listener.close()

    def _accept(self):
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if not self._open:
                    client.close()
                    continue
                pair = (client, socket.create_connection(self._server))
                with self._lock:
                    self._pairs.append(pair)
                for source, target, counted in ((*pair, True), (*pair[::-1], False)):
                    threading.Thread(
                        target=self._forward, args=(pair, source, target, counted), daemon=True
                    ).start()

    def _forward(self, pair, source, target, counted):
        with suppress(OSError):
            while data := source.recv(65536):
                if counted and self._must_cut(len(data)):
                    break
                target.sendall(data)
        _cut(pair)

    def _must_cut(self, size):
        with self._lock:
            if self.cut_after is None:
                return False
            self.cut_after -= size
            if self.cut_after > 0:
                return False
            self.cut_after = None
            self.cuts += 1
            return True


def _cut(pair):
    for end in pair:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()
