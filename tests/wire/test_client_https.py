"""The client as it is without any setting, against a server with TLS: what it finds out, what it
then takes, and what it does when that way is blocked or breaks."""

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest

from harness import Served, serve, wait_until
from sublimate.cli.certificate import own_certificate
from sublimate.client import Report, http_client, network
from sublimate.client.network import HANDSHAKE_SECONDS
from sublimate.config import EdgeSettings

USER = {"role": "user", "content": "say hello"}
ASKED: dict[str, Any] = {"model": "tiny", "max_tokens": 64, "messages": [USER]}
LONG = {**ASKED, "max_tokens": 3000, "messages": [{"role": "user", "content": "count"}]}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return own_certificate(tmp_path_factory.mktemp("tls"))


@contextlib.contextmanager
def served(certificate: tuple[Path, Path], **options: Any) -> Iterator[Served]:
    settings = EdgeSettings(tls_certificate=str(certificate[0]), tls_key=str(certificate[1]))
    with serve(settings=settings, http3=True, step_delay_us=300, **options) as made:
        yield made
        wait_until(made.idle)


@pytest.fixture(scope="module")
def server(certificate: tuple[Path, Path]) -> Iterator[Served]:
    with served(certificate, grpc=True) as made:
        yield made


@contextlib.contextmanager
def sdk(
    server: Served, certificate: tuple[Path, Path], **options: Any
) -> Iterator[anthropic.Anthropic]:
    http = http_client(verify=str(certificate[0]), **options)
    url = f"https://127.0.0.1:{server.server.ports['https']}"
    with anthropic.Anthropic(base_url=url, api_key="x", max_retries=0, http_client=http) as client:
        yield client


def report(client: anthropic.Anthropic) -> Report:
    return client._client.report()  # type: ignore[attr-defined]


def over_http3(server: Served) -> int:
    return server.server.metrics.protocols["HTTP/3"]


def test_the_first_answer_leads_to_http3(server: Served, certificate: tuple[Path, Path]) -> None:
    before = over_http3(server)
    handshakes = server.server.metrics.handshakes.total()
    with sdk(server, certificate) as client:
        client.messages.create(**ASKED)
        assert report(client).requests == {"http/1.1": 1} and over_http3(server) == before
        wait_until(lambda: server.server.metrics.handshakes.total() == handshakes + 1)
        wait_until(lambda: client.models.list().data[0].id == "tiny" and "h3" in took(client))
        before, sent = over_http3(server), report(client).requests["h3"]
        with client.messages.stream(**ASKED) as stream:
            assert "".join(stream.text_stream) == "Hello there!"
        assert report(client).requests["h3"] == sent + 1
        wait_until(lambda: over_http3(server) == before + 1)
        assert report(client).last.fallback == ""


def took(client: anthropic.Anthropic) -> dict[str, int]:
    return report(client).requests


@pytest.fixture
def swallow() -> Iterator[int]:
    """A UDP port that takes everything and answers nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


@pytest.mark.parametrize("with_grpc", [True, False], ids=["http2", "http1"])
def test_blocked_udp_costs_one_short_wait(
    certificate: tuple[Path, Path], swallow: int, with_grpc: bool
) -> None:
    names = ("h3", "grpc-h2", "frames", "http/1.1")
    with served(certificate, grpc=with_grpc) as server:
        server.server.ports["h3"] = swallow
        with sdk(server, certificate, carriers=names) as client:
            client.models.list()
            begun = time.monotonic()
            for _ in range(3):
                assert client.messages.create(**ASKED).content[0].text == "Hello there!"
            took_seconds = time.monotonic() - begun
        assert took_seconds < HANDSHAKE_SECONDS, "nobody has waited for the handshake to fail"
        sums = report(client)
        expected = {"grpc-h2": 3, "http/1.1": 1} if with_grpc else {"http/1.1": 4}
        assert sums.requests == expected
        assert sums.fallbacks["udp blocked"] >= 3 and over_http3(server) == 0
        calls = sum(server.server.metrics.calls.values())
        assert calls == (3 if with_grpc else 0)


@pytest.mark.parametrize("reason", ["udp blocked", "udp port closed", "wrong certificate"])
def test_who_names_http3_alone_goes_on_over_http1_with_the_reason(
    certificate: tuple[Path, Path], swallow: int, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    monkeypatch.setattr(network, "HANDSHAKE_SECONDS", 0.3 if reason == "udp blocked" else 10.0)
    with served(certificate) as server:
        if reason == "udp blocked":
            server.server.ports["h3"] = swallow
        elif reason == "udp port closed":
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                sock.bind(("127.0.0.1", 0))
                server.server.ports["h3"] = sock.getsockname()[1]
        else:
            server.server.tls_info["certificate_sha256"] = "0" * 64
        with sdk(server, certificate, carriers=("h3",)) as client:
            for _ in range(2):
                assert client.messages.create(**ASKED).content[0].text == "Hello there!"
            assert report(client).requests == {"http/1.1": 2}
            assert report(client).fallbacks == {reason: 2}


def test_a_head_goes_over_http1(server: Served, certificate: tuple[Path, Path]) -> None:
    with http_client(carriers=("h3",), verify=str(certificate[0])) as http:
        url = f"https://127.0.0.1:{server.server.ports['https']}/v1/models"
        for _ in range(2):
            reply = http.head(url)
            assert reply.status_code == 200 and int(reply.headers["content-length"]) > 0
            assert http.get(url).extensions["sublimate"].protocol == "h3"


@pytest.mark.parametrize("name", ["SUBLIMATE_FORCE_HTTP2", "ANTHROPIC_FORCE_HTTP2"])
def test_forced_http2_sends_no_udp(
    server: Served,
    certificate: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    monkeypatch.setenv(name, "1")
    handshakes, before = server.server.metrics.handshakes.total(), over_http3(server)
    calls = sum(server.server.metrics.calls.values())
    with sdk(server, certificate) as client:
        wait_until(lambda: bool(client.messages.create(**ASKED)) and "grpc-h2" in took(client))
        assert set(took(client)) <= {"http/1.1", "grpc-h2"}
    wait_until(lambda: sum(server.server.metrics.calls.values()) > calls)
    assert server.server.metrics.handshakes.total() == handshakes
    assert over_http3(server) == before


@pytest.mark.parametrize("carrier", ["http/1.1", "frames", "h3"])
def test_a_connection_that_is_lost_is_the_same_error(
    server: Served, certificate: tuple[Path, Path], carrier: str
) -> None:
    def cut() -> None:
        for connection in list(server.server._connections):
            connection.close()

    with sdk(server, certificate, carriers=(carrier,)) as client:
        stream = client.messages.create(**LONG, stream=True)
        with pytest.raises(Exception) as caught:
            for number, _ in enumerate(stream):
                if number == 3:
                    server.call(cut)
        kinds = [kind.__name__ for kind in type(caught.value).__mro__]
        assert "APIConnectionError" in kinds or "RemoteProtocolError" in kinds, kinds
        assert client.messages.create(**ASKED).content[0].text == "Hello there!"


def test_what_reads_goes_with_the_first_packet(
    server: Served, certificate: tuple[Path, Path]
) -> None:
    with sdk(server, certificate, carriers=("h3",)) as client:
        asked = {"model": "tiny", "messages": [USER]}
        first = client.messages.count_tokens(**asked)
        core = client._client._transport._core  # type: ignore[attr-defined]
        (origin,) = core._origins.values()
        wait_until(lambda: bool(origin.tickets))
        for session in list(core.network._all):
            session.on_loop(session.leave)
        wait_until(lambda: not core.network._all)
        early = server.server.metrics.handshakes["early"]
        assert client.messages.count_tokens(**asked) == first
        assert report(client).early_data == 1
        wait_until(lambda: server.server.metrics.handshakes["early"] == early + 1)
        # Messages may not be repeated: they wait for the handshake, and arrive once.
        for session in list(core.network._all):
            session.on_loop(session.leave)
        wait_until(lambda: not core.network._all)
        assert client.messages.create(**ASKED).content[0].text == "Hello there!"
