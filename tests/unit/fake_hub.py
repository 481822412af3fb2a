"""A hub on this machine: the interface of the real one over real HTTP, with ranges, redirects, and
faults that are asked for.

defines: FakeHub
"""

import hashlib
import re
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE_BYTES = 1000
"""Such files and larger ones have a SHA-256."""


class FakeHub:
    """Repositories by name, each a mapping of paths to contents."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, bytes]] = {}
        self.token = ""
        """Without it nothing is shown; empty: none is needed."""
        self.break_after: list[int] = []
        """Bytes of an answer's content after which its connection ends, one entry for each."""
        self.fail_with: list[int] = []
        """Statuses of the next answers."""
        self.no_ranges = False
        self.damage = b""
        """What the first bytes of each content become."""
        self.redirect_to = ""
        """Another server that has the content."""
        self.redirects_left = 1 << 30
        self.asked: list[tuple[str, str, str]] = []
        """(path, Range, Authorization)"""
        self.address = ""

    def listing(self, name: str) -> bytes:
        siblings: list[dict[str, Any]] = []
        for path, content in self.files[name].items():
            entry: dict[str, Any] = {"rfilename": path, "size": len(content)}
            blob = b"blob %d\0" % len(content) + content
            entry["blobId"] = hashlib.sha1(blob, usedforsecurity=False).hexdigest()
            if len(content) >= LARGE_BYTES:
                digest = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 134}
            siblings.append(entry)
        return msgspec.json.encode({"id": name, "sha": COMMIT, "siblings": siblings})

    @contextmanager
    def serving(self) -> Generator["FakeHub"]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *arguments: object) -> None:
                pass

            def do_GET(self) -> None:
                hub.answer(self)

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        self.address = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        wanted, authorised = request.headers.get("Range", ""), request.headers.get("Authorization")
        self.asked.append((request.path, wanted, authorised or ""))
        if self.fail_with:
            return self._send(request, self.fail_with.pop(0), b"")
        if self.token and authorised != f"Bearer {self.token}":
            return self._send(request, 401, b"{}")
        if match := re.fullmatch(r"/api/models/(.+)/revision/main\?blobs=true", request.path):
            name = match[1]
            known = name in self.files
            return self._send(request, 200 if known else 404, self.listing(name) if known else b"")
        match = re.fullmatch(rf"/([^/]+/[^/]+)/resolve/{COMMIT}/(.+)", request.path)
        content = self.files.get(match[1], {}).get(match[2]) if match else None
        if content is None:
            return self._send(request, 404, b"")
        if self.redirect_to and self.redirects_left:
            self.redirects_left -= 1
            request.send_response(302)
            request.send_header("Location", self.redirect_to + request.path)
            request.send_header("Content-Length", "0")
            return request.end_headers()
        content = self.damage + content[len(self.damage) :]
        begin = re.fullmatch(r"bytes=(\d+)-", wanted)
        if begin and not self.no_ranges:
            return self._send(request, 206, content[int(begin[1]) :])
        return self._send(request, 200, content)

    def _send(self, request: BaseHTTPRequestHandler, status: int, content: bytes) -> None:
        request.send_response(status)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        if status in (200, 206) and self.break_after and not request.path.startswith("/api/"):
            request.wfile.write(content[: self.break_after.pop(0)])
            request.wfile.flush()
            request.close_connection = True
            return
        request.wfile.write(content)
