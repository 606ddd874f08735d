"""A TCP proxy in front of a server, whose connections can be cut, and slowed down."""

import socket
import threading
import time
from contextlib import suppress
from urllib.parse import urlsplit


class Proxy:
    """Forwards to the server of a URI.

    Attributes:
        uri: the same database through the proxy.
        server: host and port behind it; may be changed.
        cut_after: close the connection that brings the bytes sent to the server to this many more,
            after exactly that byte; None: never.
        cut_answers_after: the same for the bytes that come from the server.
        cuts: how often either happened.
        delay: seconds by which every piece is held up, in both directions.
        watch: called with every piece for the server, before and after it is sent (False, True).
        change: called with every piece from the server; gives what comes instead, as long.
    """

    def __init__(self, uri):
        host = urlsplit(uri).netloc.rpartition("@")[2]
        self.server = (host.partition(":")[0], int(host.partition(":")[2]))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pairs = []
        self._lock = threading.Lock()
        self._open = True
        self.uri = uri.replace(host, f"127.0.0.1:{self._listener.getsockname()[1]}")
        self.cut_after = self.cut_answers_after = None
        self.cuts = 0
        self.delay = 0.0
        self.watch = self.change = None
        threading.Thread(target=self._accept, daemon=True).start()

    def down(self):
        """Cut all connections and let no new one live, until `up`."""
        self._open = False
        self.cut_all()

    def up(self):
        self._open = True

    def cut_all(self):
        """Cut all connections that there are."""
        with self._lock:
            for pair in self._pairs:
                _cut(pair)
            self._pairs.clear()

    def close(self):
        self.down()
        self._listener.close()

    def _accept(self):
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                pair = (client, self._connected())
                if pair[1] is None:
                    client.close()
                    continue
                with self._lock:
                    self._pairs.append(pair)
                for source, target, counter in (
                    (*pair, "cut_after"),
                    (*pair[::-1], "cut_answers_after"),
                ):
                    threading.Thread(
                        target=self._forward, args=(pair, source, target, counter), daemon=True
                    ).start()

    def _connected(self):
        """A connection to the server; None if there is none to be had."""
        with suppress(OSError):
            return socket.create_connection(self.server) if self._open else None
        return None

    def _forward(self, pair, source, target, counter):
        to_server = counter == "cut_after"
        with suppress(OSError):
            while data := source.recv(65536):
                time.sleep(self.delay)
                if to_server and self.watch:
                    self.watch(data, False)
                if not to_server and self.change:
                    data = self.change(data)
                passed = self._passed(counter, len(data))
                target.sendall(data[:passed])
                if passed < len(data):
                    break
                if to_server and self.watch:
                    self.watch(data, True)
        _cut(pair)

    def _passed(self, counter, size):
        """How many of these bytes may pass; after fewer than all the connection is cut."""
        with self._lock:
            left = getattr(self, counter)
            if left is None:
                return size
            if left > size:
                setattr(self, counter, left - size)
                return size
            setattr(self, counter, None)
            self.cuts += 1
            # The last byte of a piece stays behind, or nothing would be missing.
            return max(0, min(left, size - 1))


def _cut(pair):
    for end in pair:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()
