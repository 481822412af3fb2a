"""Files over the wire: by the official SDK, by httpx and by raw sockets; and named in messages."""

import json
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest

from harness import Served, body, exchange_bytes, http_post, read_reply, serve, wait_until
from sublimate.api.files import upload as upload_module
from sublimate.api.folder import lock_folder
from sublimate.config import EdgeSettings
from sublimate.edge.limits import HttpLimits
from sublimate.keys import KeyLimits, add_key
from test_errors import check_error

PATH = "/v1/files"
TEXT = "Please say hello, dear reader — thank you.".encode()
MIB = 1 << 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def shared_files(folder: Path) -> Iterator[Served]:
    settings = EdgeSettings(data_dir=str(folder), file_bytes_max=MIB, files_bytes_max=3 * MIB)
    with serve(settings=settings, limits=HttpLimits(body_seconds=0.5)) as running:
        yield running


@pytest.fixture
def served(shared_files: Served, folder: Path) -> Iterator[Served]:
    yield shared_files
    for entry in shared_files.client.get(PATH, params={"limit": 1000}).json()["data"]:
        shared_files.client.delete(f"{PATH}/{entry['id']}")
    wait_until(lambda: contents(folder) == set())


def refused(reply: httpx.Response, status: int) -> str:
    """What an error says."""
    return check_error(reply, status)["message"]


def contents(folder: Path) -> set[str]:
    return {entry.name for entry in (folder / "files" / "content").iterdir()}


def upload(served: Served, data: bytes, name: str = "a.txt", kind: str = "text/plain") -> str:
    reply = served.client.post(PATH, files={"file": (name, data, kind)})
    assert reply.status_code == 200, reply.text
    return reply.json()["id"]


def document(identifier: str, **fields: Any) -> list[dict[str, Any]]:
    source = {"type": "file", "file_id": identifier}
    return [{"type": "document", "source": source, **fields}]


@pytest.mark.parametrize("beta", [False, True])
def test_the_official_client_keeps_files(
    served: Served, client: anthropic.Anthropic, beta: bool
) -> None:
    files: Any = client.beta.files if beta else client.files
    made = files.upload(file=("ä b.txt", TEXT, "text/plain"))
    assert (made.filename, made.mime_type, made.size_bytes) == ("ä b.txt", "text/plain", len(TEXT))
    others = [files.upload(file=(f"{n}.bin", bytes([n]) * n)).id for n in (1, 2)]
    assert files.retrieve_metadata(made.id) == made
    assert files.download(made.id).read() == TEXT
    assert [entry.id for entry in files.list(limit=1)] == [*reversed(others), made.id]
    assert [entry.id for entry in files.list(ids=[made.id, "file_none"])] == [made.id]
    assert files.delete(made.id).id == made.id
    with pytest.raises(anthropic.NotFoundError):
        files.download(made.id)
    with pytest.raises(anthropic.BadRequestError, match="kept until"):
        client.files.upload(file=("a", b"x"), expires_in_seconds=3600)


def test_a_download_is_an_attachment(served: Served) -> None:
    identifier = upload(served, b"<script>", 'x"\u00e9%.html', "text/html; charset=utf-8")
    reply = served.client.get(f"{PATH}/{identifier}/content")
    assert reply.content == b"<script>" and reply.headers["content-type"] == "text/html"
    assert reply.headers["x-content-type-options"] == "nosniff"
    disposition = reply.headers["content-disposition"]
    assert disposition == "attachment; filename=\"x___.html\"; filename*=UTF-8''x%22%C3%A9%25.html"


@pytest.mark.parametrize("kind", ["text", "text/", "/html", "text/html/x", "te xt/html", "t/" * 90])
def test_a_type_that_is_none_is_that_of_bytes(served: Served, kind: str) -> None:
    reply = served.client.get(f"{PATH}/{upload(served, b'x', 'name', kind)}/content")
    assert reply.headers["content-type"] == "application/octet-stream"


@pytest.mark.parametrize("name", ["../../x", "a/b", "a\\b", "..", "x" * 256])
def test_a_name_is_no_path(served: Served, folder: Path, name: str) -> None:
    before = set(folder.rglob("*"))
    reply = served.client.post(PATH, files={"file": (name, b"data")})
    assert "file.filename" in refused(reply, 400)
    assert set(folder.rglob("*")) - before <= {folder / "files" / "content"}


@pytest.mark.parametrize("target", ["..%2F..%2Ffiles.sqlite", "files.sqlite", "%2Fetc%2Fpasswd"])
def test_an_id_is_no_path(served: Served, target: str) -> None:
    for method, suffix in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        refused(served.client.request(method, f"{PATH}/{target}{suffix}"), 404)


def test_forms_that_are_none(served: Served, folder: Path) -> None:
    def posted(data: bytes, kind: str = "multipart/form-data; boundary=b") -> httpx.Response:
        return served.client.post(PATH, content=data, headers={"content-type": kind})

    head = b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
    assert "content-type" in refused(posted(b"{}", "application/json"), 400)
    assert "content-type" in refused(posted(b"{}", "multipart/form-data"), 400)
    assert "body" in refused(posted(b"nothing of it"), 400)
    assert "last boundary" in refused(posted(head + b"cut"), 400)
    assert "file" in refused(posted(b"--b--\r\n"), 400)
    plain = b'--b\r\ncontent-disposition: form-data; name="file"\r\n\r\nx\r\n--b--\r\n'
    assert "filename" in refused(posted(plain), 400)
    twice = head + b"x\r\n" + head + b"y\r\n--b--\r\n"
    assert "one file" in refused(posted(twice), 400)
    wait_until(lambda: contents(folder) == set())


def test_limits_say_what_to_do(served: Served, folder: Path) -> None:
    files = {"file": ("a", bytes(MIB + 1))}
    assert "--file-bytes-max" in refused(served.client.post(PATH, files=files), 413)
    for _ in range(3):
        upload(served, bytes(MIB))
    files = {"file": ("a", b"x")}
    assert "Delete some" in refused(served.client.post(PATH, files=files), 413)
    assert len(contents(folder)) == 3


def test_a_slow_or_cut_upload_leaves_nothing(served: Served, folder: Path) -> None:
    form = b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n' + bytes(5000)
    request = http_post(form, PATH, content_type="multipart/form-data; boundary=b")
    half = request.replace(b"content-length: ", b"content-length: 9")
    slow, cut = served.connect(), served.connect()
    slow.sendall(half)
    cut.sendall(half)
    wait_until(lambda: len(contents(folder)) == 2)
    cut.close()
    assert exchange_bytes(slow, b"").status == 408
    wait_until(lambda: contents(folder) == set())
    assert served.client.get(PATH).json()["data"] == []
    slow.close()


def test_ids_of_a_list_are_bounded(served: Served) -> None:
    names = [f"file_{number}" for number in range(101)]
    reply = served.client.get("/v1/files", params={"ids": names[:100]})
    assert reply.status_code == 200 and reply.json()["data"] == []
    for wrong in ({"ids": names}, {"ids": names[:1], "limit": 5}):
        check_error(served.client.get("/v1/files", params=wrong), 400, "ids: at most 100")


def test_files_are_documents_of_messages(served: Served) -> None:
    identifier = upload(served, TEXT)
    inline = document(identifier, title="T")
    inline[0]["source"] = {"type": "text", "media_type": "text/plain", "data": TEXT.decode()}
    counts = []
    for content in (inline, document(identifier, title="T")):
        assert served.message(content).json()["content"][0]["text"] == "Hello there!"
        counted = body(content)
        counted.pop("max_tokens")
        counts.append(served.client.post("/v1/messages/count_tokens", json=counted).json())
    assert counts[0] == counts[1] and counts[0]["input_tokens"] > 0
    result = {"type": "tool_result", "tool_use_id": "c", "content": document(identifier)}
    call = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    turns = [("user", "x"), ("assistant", [call]), ("user", [result])]
    messages = [{"role": role, "content": said} for role, said in turns]
    assert served.message(messages=messages).status_code == 200
    params = body(document(identifier))
    asked = {"requests": [{"custom_id": "a", "params": params}]}
    batch = served.client.post("/v1/messages/batches", json=asked).json()["id"]
    status = f"/v1/messages/batches/{batch}"
    wait_until(lambda: served.client.get(status).json()["processing_status"] == "ended")
    line = json.loads(served.client.get(f"{status}/results").text)
    assert line["result"]["message"]["content"][0]["text"] == "Hello there!"


def test_what_is_no_text_is_refused_by_its_path(served: Served) -> None:
    place = "messages.0.content.0.source.file_id"
    for data in (b"%PDF-1.7 text", b"\xff\xfe", b"a\0"):
        identifier = upload(served, data, "a.pdf", "application/pdf")
        message = refused(served.message(document(identifier)), 400)
        assert message.startswith(place) and "text files" in message
    assert refused(served.message(document("file_none")), 400).startswith(place)
    many = [*document(upload(served, b"x" * MIB))] * 33
    assert "together" in refused(served.message(many), 400)


def test_a_file_is_its_owners(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    mine, theirs = (add_key(keys, name, KeyLimits()) for name in ("mine", "theirs"))
    with serve(settings=EdgeSettings(data_dir=str(tmp_path), keys_file=str(keys))) as served:
        ours, others = ({"x-api-key": key} for key in (mine, theirs))
        files = {"file": ("a", TEXT)}
        refused(served.client.post(PATH, files=files), 401)
        made = served.client.post(PATH, files=files, headers=ours).json()["id"]
        for method, path in (("GET", made), ("GET", f"{made}/content"), ("DELETE", made)):
            refused(served.client.request(method, f"{PATH}/{path}", headers=others), 404)
        assert served.client.get(PATH, headers=others).json()["data"] == []
        for headers, status in ((others, 400), (ours, 200)):
            reply = served.client.post("/v1/messages", json=body(document(made)), headers=headers)
            assert reply.status_code == status
    with serve(settings=EdgeSettings(data_dir=str(tmp_path), keys_file=str(keys))) as served:
        assert served.client.get(f"{PATH}/{made}/content", headers=ours).content == TEXT
        with serve(settings=EdgeSettings(data_dir=str(tmp_path), keys_file=str(keys))) as second:
            assert "data folder" in refused(second.client.get(PATH, headers=ours), 503)
            reply = second.client.post("/v1/messages", json=body("say hello"), headers=ours)
            assert reply.status_code == 200


def test_memory_is_flat_for_a_large_body(tmp_path: Path) -> None:
    with serve(settings=EdgeSettings(data_dir=str(tmp_path))) as served:
        upload(served, b"warm")
        size = 31 * MIB
        head = b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
        tail = b"\r\n--b--\r\n"
        lines = [
            f"POST {PATH} HTTP/1.1",
            "host: localhost",
            f"content-length: {len(head + tail) + size}",
        ]
        lines += ["content-type: multipart/form-data; boundary=b", "", ""]
        piece, highest = bytes(MIB), 0
        with served.connect() as sock:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            sock.sendall("\r\n".join(lines).encode() + head)
            for _ in range(31):
                sock.sendall(piece)
                time.sleep(0)
            reply = exchange_bytes(sock, tail)
            highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert reply.status == 200 and reply.json["size_bytes"] == size
        assert highest < 8 * MIB // 1024  # KiB


def test_a_piece_that_found_no_store_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when one edge takes over from another: what failed is told, and no fault of the form's."""
    monkeypatch.setattr(upload_module, "TAKE_OVER_SECONDS", 0.0)
    form = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nabc\r\n--b--'
    head = (
        f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(form)}\r\n"
        "content-type: multipart/form-data; boundary=b\r\n\r\n"
    )
    with serve(settings=EdgeSettings(data_dir=str(tmp_path))) as served:
        lock = lock_folder(tmp_path / "files")
        with served.connect() as sock:
            sock.sendall(head.encode() + form[:20])
            wait_until(lambda: bool(served.server._parts))
            time.sleep(0.1)
            os.close(lock)
            sock.sendall(form[20:])
            reply = read_reply(sock)
        assert reply.status == 503 and b"data folder" in reply.body
        assert served.client.post(PATH, files={"file": ("a", b"abc")}).status_code == 200
