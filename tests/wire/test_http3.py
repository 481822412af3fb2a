"""HTTP/3 by a client of the tests' own: answers and streams are those of HTTP/1.1, uploads wait,
bounds hold, and who misbehaves or vanishes leaves nothing behind."""

import hashlib
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from aioquic.h3.connection import ErrorCode

from grammar import check_stream
from harness import Served, body, serve, wait_until
from http3_client import Answer, Client
from stream_grammar import check_body
from sublimate.cli.certificate import own_certificate
from sublimate.config import EdgeSettings
from sublimate.edge import limits
from sublimate.edge.limits import HttpLimits
from sublimate.edge.quic.listener import _secret_of
from sublimate.edge.quic.transport import REQUEST_STREAM_MASK, reset_token

COUNT = {"stream": True, "max_tokens": 4000, "seed": 1}


@pytest.fixture
def client(served: Served, pair: tuple[Path, Path]) -> Iterator[Client]:
    one = Client(served.server.ports["h3"], pair[0])
    yield one
    one.close()
    wait_until(served.idle)


def connect(served: Served, pair: tuple[Path, Path], **more: Any) -> Client:
    return Client(served.server.ports["h3"], pair[0], **more)


def checked(answer: Answer, path: str = "/v1/messages") -> Answer:
    """By the grammar of its API."""
    assert answer.status == 200 and answer.is_complete
    check_body(path, answer.headers["content-type"], answer.body)
    return answer


def said(stream: bytes) -> str:
    return check_stream(stream).text


def nothing_is_left(served: Served) -> bool:
    """No connection, stream, task or engine slot."""
    quic = served.server._quic
    assert quic is not None
    return served.idle() and not served.call(lambda: quic.connections or served.server._tasks)


# ---- answers -----------------------------------------------------------------------------------
def test_answers_and_streams_are_those_of_http_1(served: Served, client: Client) -> None:
    whole = client.ask("POST", "/v1/messages", body())
    assert whole.status == 200 and whole.json["content"][0]["text"] == "Hello there!"
    assert whole.headers["request-id"].startswith("req_") and whole.headers["x-layer"]
    stream = checked(client.ask("POST", "/v1/messages", body("count", **COUNT)))
    clear = served.client.post("/v1/messages", json=body("count", **COUNT)).content
    assert said(stream.body) == said(clear) and len(said(clear)) > 3000
    assert "transfer-encoding" not in stream.headers
    chat = {"model": "tiny", "stream": True, "messages": [{"role": "user", "content": "say hello"}]}
    checked(client.ask("POST", "/v1/chat/completions", chat), "/v1/chat/completions")
    frames = client.ask(
        "POST", "/v1/messages", body("count", **COUNT), accept="application/octet-stream"
    )
    checked(frames)
    document = client.ask("GET", "/openapi.json").json
    port = served.server.ports["h3"]
    assert document["servers"][0]["url"] == f"https://127.0.0.1:{port}"


def test_streams_of_one_connection_do_not_wait_for_each_other(
    served: Served, client: Client
) -> None:
    ids = [
        client.begin("POST", "/v1/messages", msgspec.json.encode(body("count", **COUNT)))
        for _ in range(8)
    ]
    short = client.begin("GET", "/livez")
    client.run(lambda: client.answers[short].is_complete)
    assert not any(client.answers[one].is_complete for one in ids)
    client.run(lambda: all(client.answers[one].is_complete for one in ids))
    texts = {said(checked(client.answers[one]).body) for one in ids}
    assert len(texts) == 1


def test_errors_have_their_envelope_and_the_connection_goes_on(client: Client) -> None:
    for method, path, sent, status in (
        ("GET", "/nothing", None, 404),
        ("GET", "/v1/messages", None, 405),
        ("POST", "/v1/messages", b"{", 400),
    ):
        answer = client.ask(method, path, sent)
        assert answer.status == status and answer.json["type"] == "error", answer
    size = str(limits.MIB * 33)
    large = client.begin("POST", "/v1/messages", b" ", is_end=False, content_length=size)
    client.run(lambda: client.answers[large].is_complete)
    assert client.answers[large].status == 413
    assert client.ask("POST", "/v1/messages", body()).status == 200


def test_where_it_listens_is_told_on_the_tcp_side(
    served: Served, pair: tuple[Path, Path], client: Client
) -> None:
    port = served.server.ports["https"]
    trust = ssl.create_default_context(cafile=str(pair[0]))
    with httpx.Client(base_url=f"https://localhost:{port}", verify=trust) as secure:
        answer = secure.get("/.well-known/sublimate")
    assert answer.headers["alt-svc"] == f'h3=":{port}"; ma={limits.ALTERNATIVE_SECONDS}'
    assert "alt-svc" not in served.client.get("/livez").headers
    told = client.ask("GET", "/.well-known/sublimate").json
    assert told == answer.json()
    assert told["ports"]["h3"] == port and told["protocols"][:2] == ["http/1.1", "h3"]
    der = ssl.PEM_cert_to_DER_cert(pair[0].read_text())
    assert told["certificate_sha256"] == hashlib.sha256(der).hexdigest()
    counted = served.client.get("/metrics").text
    name = "sublimate_http_protocol_responses_total"
    assert f'{name}{{engine="0",model_name="tiny",protocol="HTTP/3"}}' in counted


def test_files_go_up_and_come_back(served: Served, client: Client) -> None:
    content = bytes(range(256)) * 8192
    form = (
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.bin"\r\n'
        b"Content-Type: application/octet-stream\r\n\r\n" + content + b"\r\n--x--\r\n"
    )
    kept = client.ask("POST", "/v1/files", form, content_type="multipart/form-data; boundary=x")
    assert kept.status == 200 and kept.json["size_bytes"] == len(content)
    again = client.ask("GET", f"/v1/files/{kept.json['id']}/content")
    assert again.status in (200, 400)
    if again.status == 200:
        assert again.body == content
    client.ask("DELETE", f"/v1/files/{kept.json['id']}")


# ---- bounds ------------------------------------------------------------------------------------
def test_heads_are_bounded(served: Served, pair: tuple[Path, Path], client: Client) -> None:
    most = served.server.limits.header_bytes_max
    assert client.ask("GET", "/livez", x="a" * (most // 2)).status == 200
    assert client.ask("GET", "/livez", x="a" * (most + 1)).status == 431
    many = {f"x{number}": "1" for number in range(101)}
    assert client.ask("GET", "/livez", **many).status == 431
    other = connect(served, pair)
    large = {f"x{number}": "\xff" * 4000 for number in range(8 * most // 4000)}
    stream = other.begin("GET", "/livez", **large)
    other.run(lambda: other.ended is not None)
    assert other.ended is not None and other.ended.error_code == ErrorCode.H3_EXCESSIVE_LOAD
    assert not other.answers[stream].status


def test_what_does_not_arrive_in_time_is_told(client: Client) -> None:
    late = client.begin("POST", "/v1/messages", b"{", is_end=False)
    headless = client.quic.get_next_available_stream_id()
    client.answers[headless] = Answer()
    client.quic.send_stream_data(headless, b"\x01\x40\xff")
    client.run(lambda: client.answers[headless].is_complete and client.answers[late].is_complete)
    assert client.answers[headless].status == client.answers[late].status == 408
    assert client.ask("GET", "/livez").status == 200


def test_doubts_about_a_head_are_refused(client: Client) -> None:
    answer = client.ask("GET", "/livez", host="other")
    assert answer.status == 400, "two hosts"
    stream_id = client.quic.get_next_available_stream_id()
    client.answers[stream_id] = Answer()
    head = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"localhost")]
    keys = [(b"x-api-key", b"a"), (b"x-api-key", b"b")]
    client.h3.send_headers(stream_id, [*head, (b":path", b"/livez"), *keys], True)
    client.run(lambda: client.answers[stream_id].is_complete)
    assert client.answers[stream_id].status == 400


def test_cancelled_streams_leave_nothing_on_a_connection_that_goes_on(
    served: Served, client: Client
) -> None:
    data = msgspec.json.encode(body("count", **COUNT))
    streams: list[int] = []
    for _ in range(20):
        stream = client.begin("POST", "/v1/messages", data)
        client.send()
        client.quic.stop_stream(stream, ErrorCode.H3_REQUEST_CANCELLED)
        client.run(lambda one=client.answers[stream]: one.is_over)
        streams.append(stream)
    assert any(not client.answers[one].is_complete for one in streams)
    size = str(limits.MIB * 33)
    large = client.begin("POST", "/v1/messages", b" ", is_end=False, content_length=size)
    client.run(lambda: client.answers[large].is_complete)
    wait_until(served.idle)
    assert client.ask("GET", "/livez").status == 200
    quic = served.server._quic
    assert quic is not None
    connection = served.call(lambda: list(quic._labels)[-1])

    def kept() -> set[int]:
        streams = (connection._streams, connection._dropped, connection.messages._stream)
        return {one for known in streams for one in known if not one & REQUEST_STREAM_MASK}

    # Its client acknowledges with what it sends next.
    wait_until(lambda: client.ask("GET", "/livez").status == 200 and not served.call(kept))


def test_a_reset_cancels_and_a_storm_of_them_ends_the_connection(
    served: Served, pair: tuple[Path, Path]
) -> None:
    one = connect(served, pair)
    stream = one.begin("POST", "/v1/messages", msgspec.json.encode(body("count", max_tokens=8000)))
    one.run(lambda: not served.idle())
    one.quic.reset_stream(stream, ErrorCode.H3_REQUEST_CANCELLED)
    one.quic.stop_stream(stream, ErrorCode.H3_REQUEST_CANCELLED)
    one.send()
    wait_until(served.idle)
    data = msgspec.json.encode(body("count", **COUNT))
    while one.ended is None:
        one.run(lambda: one.ended is not None or one.may_begin())
        if one.ended is None:
            stream = one.begin("POST", "/v1/messages", data)
            one.send()
            one.quic.stop_stream(stream, ErrorCode.H3_REQUEST_CANCELLED)
            one.turn(0.001)
    assert one.ended is not None and one.ended.error_code == ErrorCode.H3_EXCESSIVE_LOAD
    wait_until(lambda: nothing_is_left(served))


def test_who_vanishes_is_noticed(pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "QUIC_IDLE_SECONDS", 2.0)
    monkeypatch.setattr(limits, "QUIC_PING_SECONDS", 0.3)
    settings = EdgeSettings(tls_certificate=str(pair[0]), tls_key=str(pair[1]))
    with serve(settings=settings, http3=True, step_delay_us=20_000) as served:
        gone, there = connect(served, pair), connect(served, pair)
        data = msgspec.json.encode(body("count", max_tokens=200))
        for one in (gone, there):
            one.begin("POST", "/v1/messages", data)
            one.run(lambda: not served.idle())
        gone.vanish()
        answer = there.answers[0]
        begun = time.monotonic()
        there.run(lambda: answer.is_complete)
        assert answer.status == 200 and time.monotonic() - begun > 2.2, "longer than the timeout"
        there.close()
        wait_until(lambda: nothing_is_left(served))
        assert served.stats()["cancelled_decode"] >= 1


def test_who_reads_nothing_is_cut_off_and_others_are_not(pair: tuple[Path, Path]) -> None:
    settings = EdgeSettings(tls_certificate=str(pair[0]), tls_key=str(pair[1]))
    bounds = HttpLimits(unsent_bytes_max=2000)
    with serve(settings=settings, http3=True, limits=bounds) as served:
        slow = connect(served, pair, max_stream_data=1000)
        slow.quic._write_stream_limits = lambda **more: None
        data = msgspec.json.encode(body("count", **COUNT))
        stream = slow.begin("POST", "/v1/messages", data)
        slow.run(lambda: slow.answers[stream].is_over)
        assert slow.answers[stream].reset_code == ErrorCode.H3_REQUEST_CANCELLED
        assert slow.ask("GET", "/livez").status == 200
        wait_until(served.idle)
        assert served.metrics.ends["slow_reader"] == 1
        slow.close()


def test_a_connection_that_is_not_known_is_reset(
    served: Served, pair: tuple[Path, Path], client: Client
) -> None:
    """By the token that its client was given with the label (RFC 9000, section 10.3), also by a
    server that begins anew with the same key; no larger than what asked for it."""
    assert client.ask("GET", "/livez").status == 200
    secret = _secret_of(str(pair[1]))
    label = client.quic._peer_cid
    assert reset_token(secret, label.cid) == label.stateless_reset_token
    assert {len(other.stateless_reset_token) for other in client.quic._peer_cid_available} == {16}
    for other in client.quic._peer_cid_available:
        assert reset_token(secret, other.cid) == other.stateless_reset_token
    unknown = bytes(range(8))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("127.0.0.1", served.server.ports["h3"]))
        sock.settimeout(5.0)
        for size, expected in ((21, 0), (22, 21), (40, 39), (1200, 43)):
            sock.send(b"\x40" + unknown + b"\xaa" * (size - 9))
            if expected:
                reset = sock.recv(2048)
                assert len(reset) == expected and reset[0] & 0xC0 == 0x40
                assert reset.endswith(reset_token(secret, unknown))
        assert client.ask("GET", "/livez").status == 200, "others go on"


def test_what_is_no_handshake_is_forgotten(served: Served, client: Client) -> None:
    """Datagrams that look like a client's first and make no sense, and some that do not."""
    quic = served.server._quic
    assert quic is not None
    before = served.call(lambda: quic.connections)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("127.0.0.1", served.server.ports["h3"]))
        head = bytes.fromhex("c3 00000001 08")
        for number in range(2 * limits.QUIC_HALF_OPEN_MAX):
            label = number.to_bytes(8, "big")
            sock.send(head + label + b"\x08" + label + b"\x00\x44\x96" + b"\xaa" * 1174)
        for data in (b"\0", b"\xff" * 1500, b"\x40" * 30, head):
            sock.send(data)
        wait_until(lambda: served.call(lambda: quic.connections) > before)
        assert served.call(lambda: quic.connections) <= before + limits.QUIC_HALF_OPEN_MAX
    assert client.ask("GET", "/livez").status == 200, "it has shown its address"
    wait_until(lambda: served.call(lambda: quic.connections) <= before + 1)


def test_a_first_label_that_is_too_short_keeps_nothing(served: Served, client: Client) -> None:
    """RFC 9000, section 7.2: a client invents 8 bytes or more."""
    quic = served.server._quic
    assert quic is not None and client.ask("GET", "/livez").status == 200
    before = served.call(lambda: quic.connections)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("127.0.0.1", served.server.ports["h3"]))
        for size in range(8):
            label = bytes([size]) + b"\x7f" * size
            head = bytes.fromhex("c3 00000001") + label + b"\x08" + bytes(8)
            sock.send((head + b"\x00\x44\x96").ljust(1200, b"\xaa"))
    assert client.ask("GET", "/livez").status == 200
    assert served.call(lambda: quic.connections) <= before
    assert served.call(lambda: min(map(len, quic._by_label))) == 8


# ---- connections -------------------------------------------------------------------------------
def test_labels_are_known_before_a_client_can_use_them(
    served: Served, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    quic = served.server._quic
    assert quic is not None
    send = quic.send_flight
    told, unknown = set[bytes](), set[bytes]()

    def send_flight(flight: Any) -> None:
        for connection in quic._labels:
            issued = {one.cid for one in connection.transport._host_cids if one.was_sent}
            told.update(issued)
            unknown.update(issued - quic._by_label.keys())
        send(flight)

    monkeypatch.setattr(quic, "send_flight", send_flight)
    client = connect(served, pair)
    assert client.ask("GET", "/livez").status == 200
    client.close()
    assert len(told) > 1 and not unknown


def test_a_client_may_move_between_requests_and_within_a_stream(
    served: Served, client: Client
) -> None:
    for _ in range(12):
        client.rebind()
        assert client.ask("GET", "/livez").status == 200
    stream = client.begin("POST", "/v1/messages", msgspec.json.encode(body("count", **COUNT)))
    client.run(lambda: client.answers[stream].body != b"")
    client.rebind()
    client.quic.send_ping(1)
    client.run(lambda: client.answers[stream].is_complete)
    checked(client.answers[stream])


@pytest.mark.parametrize("loss", [0.01, 0.05])
def test_loss_is_repaired(served: Served, pair: tuple[Path, Path], loss: float) -> None:
    one = connect(served, pair, loss=loss, seed=3)
    stream = checked(one.ask("POST", "/v1/messages", body("count", **COUNT)))
    assert len(said(stream.body)) > 3000
    assert one.ask("POST", "/v1/messages", b" " * 200_000 + b"{}").status == 400
    one.close()


def test_a_renewed_certificate_is_for_new_connections(tmp_path: Path) -> None:
    pair = own_certificate(tmp_path)
    settings = EdgeSettings(tls_certificate=str(pair[0]), tls_key=str(pair[1]))
    with serve(settings=settings, http3=True) as served:
        old = tmp_path / "old.pem"
        old.write_bytes(pair[0].read_bytes())
        kept = Client(served.server.ports["h3"], old)
        assert kept.ask("GET", "/livez").status == 200
        pair[0].unlink()
        own_certificate(tmp_path)
        served.call(served.server.reload)
        assert kept.ask("GET", "/livez").status == 200, "streams go on"
        stranger = Client(served.server.ports["h3"], old, ticket=kept.tickets[0])
        stranger.run(lambda: stranger.ended is not None)
        assert "unable to get local issuer" in str(stranger.ended) or stranger.ended
        assert Client(served.server.ports["h3"], pair[0]).ask("GET", "/livez").status == 200


def test_draining_says_so_and_lets_streams_end(pair: tuple[Path, Path]) -> None:
    settings = EdgeSettings(tls_certificate=str(pair[0]), tls_key=str(pair[1]))
    with serve(settings=settings, http3=True, step_delay_us=500) as served:
        idle, busy = connect(served, pair), connect(served, pair)
        assert idle.ask("GET", "/livez").status == 200
        stream = busy.begin("POST", "/v1/messages", msgspec.json.encode(body("count", **COUNT)))
        busy.run(lambda: busy.answers[stream].body != b"")
        served.call(lambda: served.server.drain(20.0, lambda: None))
        idle.run(lambda: idle.ended is not None)
        late = busy.begin("GET", "/livez")
        busy.run(lambda: busy.answers[stream].is_complete)
        checked(busy.answers[stream])
        assert busy.answers[late].reset_code == ErrorCode.H3_REQUEST_REJECTED
        busy.run(lambda: busy.ended is not None)
        wait_until(lambda: nothing_is_left(served))
