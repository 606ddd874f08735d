"""A cache of its own for every test, and a web server on loopback."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from archive_helpers import Site


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """The folder of the cache; it does not exist yet."""
    monkeypatch.setenv("PIPEFIT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return tmp_path / "home" / "cache" / "archives"


@pytest.fixture
def site() -> Iterator[Site]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            site.requests.append(self.path)
            if site.statuses:
                self.send_error(site.statuses.pop(0))
                return
            self.send_response(200)
            self.send_header("Content-Length", str(site.length or len(site.data)))
            self.end_headers()
            half = len(site.data) // 2
            self.wfile.write(site.data[:half])
            self.wfile.flush()
            site.halfway.set()
            if site.cuts:
                site.cuts -= 1
                return
            site.go_on.wait(60)
            self.wfile.write(site.data[half:])

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    site = Site(f"http://127.0.0.1:{server.server_port}/data.tar.gz")
    site.go_on.set()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield site
    site.go_on.set()
    server.shutdown()
    server.server_close()
    thread.join()
