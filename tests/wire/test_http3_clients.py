"""Other people's HTTP/3: libcurl with ngtcp2 (pycurl), BoringSSL (curl_cffi), ngtcp2's own client
with GnuTLS and 0-RTT, and Chromium where it is installed."""

import io
import os
import shutil
import subprocess
from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from harness import Served, body, serve, wait_until
from stream_grammar import check_body
from sublimate.config import EdgeSettings

COUNT = {"stream": True, "max_tokens": 4000, "seed": 1}
JSON = ["content-type: application/json"]


def port(served: Served) -> int:
    return served.server.ports["h3"]


class Curl:
    """HTTP/3 and nothing else, by libcurl."""

    def __init__(self, served: Served, certificate: Path) -> None:
        self.pycurl = pytest.importorskip("pycurl")
        self.base = f"https://localhost:{port(served)}"
        self.handle = self.pycurl.Curl()
        self.handle.setopt(self.pycurl.HTTP_VERSION, 31)
        self.handle.setopt(self.pycurl.CAINFO, str(certificate))
        self.handle.setopt(self.pycurl.TIMEOUT, 20)

    def ask(self, path: str, data: bytes | None = None) -> tuple[int, bytes, bytes]:
        """(status, head, body)."""
        head, content = io.BytesIO(), io.BytesIO()
        curl, handle = self.pycurl, self.handle
        handle.setopt(curl.URL, self.base + path)
        handle.setopt(curl.HEADERFUNCTION, head.write)
        handle.setopt(curl.WRITEFUNCTION, content.write)
        handle.setopt(curl.HTTPHEADER, JSON)
        if data is None:
            handle.setopt(curl.HTTPGET, 1)
        else:
            handle.setopt(curl.POSTFIELDS, data)
        handle.perform()
        assert handle.getinfo(curl.INFO_HTTP_VERSION) == 30, "HTTP/3"
        return handle.getinfo(curl.RESPONSE_CODE), head.getvalue(), content.getvalue()


def test_libcurl(served: Served, pair: tuple[Path, Path]) -> None:
    curl = Curl(served, pair[0])
    status, head, content = curl.ask("/v1/messages", msgspec.json.encode(body("count", **COUNT)))
    assert status == 200 and b"x-layer:" in head
    check_body("/v1/messages", "text/event-stream", content)
    status, _, content = curl.ask("/v1/messages", b" " * (2 << 20) + b"{}")
    assert status == 400 and b"model" in content
    for _ in range(20):
        assert curl.ask("/livez")[0] == 200
    curl.handle.setopt(curl.pycurl.NOBODY, 1)
    assert curl.ask("/v1/models")[0] == 200
    curl.handle.close()


def test_curl_cffi(served: Served, pair: tuple[Path, Path]) -> None:
    requests = pytest.importorskip("curl_cffi.requests")
    version = pytest.importorskip("curl_cffi").CurlHttpVersion.V3ONLY
    with requests.Session(http_version=version, verify=str(pair[0])) as session:
        url = f"https://localhost:{port(served)}/v1/messages"
        answer: Any = session.post(url, json=body("count", **COUNT), timeout=20)
        assert answer.status_code == 200 and answer.http_version in (3, 30)
        check_body("/v1/messages", answer.headers["content-type"], answer.content)


@pytest.mark.skipif(shutil.which("gtlsclient") is None, reason="ngtcp2-client is not installed")
def test_ngtcp2_and_its_early_data(served: Served, tmp_path: Path) -> None:
    """Its own tickets in files: the second run sends its request with the first datagrams."""
    before = served.server.metrics.handshakes["early"]
    command = [
        *("gtlsclient", "127.0.0.1", str(port(served)), f"https://localhost:{port(served)}/livez"),
        *("--session-file", str(tmp_path / "session"), "--tp-file", str(tmp_path / "parameters")),
        *("--exit-on-all-streams-close", "--sni", "localhost", "--timeout", "2s"),
    ]
    told = ""
    for _ in range(2):
        run = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        told = run.stdout + run.stderr
        assert ":status: 200" in told or "[:status: 200]" in told, told[-2000:]
    assert served.server.metrics.handshakes["early"] == before + 1, told[-2000:]


PAGE = """<script>
async function ask() {
  const told = [];
  for (const turn of [1, 2]) {
    const answer = await fetch("/v1/messages", {method: "POST",
      headers: {"content-type": "application/json"}, body: JSON.stringify(BODY)});
    told.push(await answer.text());
  }
}
ask();
</script>"""


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
@pytest.mark.slow
def test_chromium(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """Forced QUIC, headless; a page from disk asks twice, and the server tells how it was asked."""
    key = x509.load_pem_x509_certificate(pair[0].read_bytes()).public_key()
    pin = b64encode(
        sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest()
    ).decode()
    settings = EdgeSettings(tls_certificate=str(pair[0]), tls_key=str(pair[1]), cors_origins=("*",))
    with serve(settings=settings, http3=True) as served:
        url = f"https://localhost:{port(served)}"
        page = tmp_path / "page.html"
        request = msgspec.json.encode(body("count", **COUNT)).decode()
        page.write_text(PAGE.replace("BODY", request).replace('"/v1', f'"{url}/v1'))
        command = [
            *("chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-quic"),
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--origin-to-force-quic-on=localhost:{port(served)}",
            f"--ignore-certificate-errors-spki-list={pin}",
            "--host-resolver-rules=MAP localhost 127.0.0.1",
            *("--disable-web-security", page.as_uri()),
        ]
        environment = {**os.environ, "HOME": str(tmp_path)}
        metrics, answers = served.server.metrics, served.server.models.main.metrics
        with (tmp_path / "log").open("w") as log:
            browser = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
            try:
                wait_until(lambda: answers.ends["end_turn"] >= 2, seconds=40)
            finally:
                browser.terminate()
                browser.wait()
        assert metrics.protocols["HTTP/3"] >= 2, (tmp_path / "log").read_text()[-2000:]
        assert set(metrics.protocols) == {"HTTP/3"}
        wait_until(served.idle)
        assert served.server.metrics.responses["200"] >= 2
