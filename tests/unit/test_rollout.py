"""The roll-out kit: what a scan finds and what it leaves alone, names of metrics against the real
ones, HTTP/3 as another library serves it, and a rehearsal with a wheel of this tree."""

import asyncio
import base64
import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import house
from sublimate.cli import rollout
from sublimate.cli.certificate import own_certificate
from sublimate.config import Settings, cache_folder
from sublimate.edge.observe.compat import NAMES
from sublimate.errors import ConfigError, PeerError
from sublimate.model.files import fetch
from sublimate.policy import manifest
from sublimate.rollout.metrics import MIGRATIONS, NEW_HERE, new_name
from sublimate.rollout.quic import check_quic, parse_target
from sublimate.rollout.rehearse import Rehearsal, rehearse
from sublimate.rollout.rules import RULES
from sublimate.rollout.scan import scan_tree
from sublimate.rollout.sources import Finding, scan_lines, scan_python


def rules(findings: list[Finding]) -> list[str]:
    return [one.rule for one in findings]


# ---- scan ----------------------------------------------------------------------------------------
OLD_CLIENT = '''"""Asks /v1/layer/negotiate first."""
import requests
import sublimate.legacy.broker
from sublimate.legacy import gateway

# POST /v1/layer/negotiate is what this does
def ask(base, body):
    """A lease as in ?lease=x."""
    reply = requests.post(f"{base}/v1/layer/negotiate", json={"model": "m"}, allow_redirects=False)
    if reply.status_code == 302:
        print(reply.headers["Sunset"])
        return requests.post(reply.headers["Location"], json=body)
'''


FOUND = {
    "module.py": ("from anthropic.layer import *\n", "layer-module"),
    "submodule.py": ("import anthropic.layer.client as layer\n", "layer-module"),
    "sdk.ts": ("import { layer } from '@anthropic-ai/sdk/layer';\n", "layer-module"),
    "header.py": ('HEADERS = {"X-Anthropic-Layer-Negotiate": "1"}\n', "layer-header"),
    "header.sh": ("curl -H 'x-anthropic-layer: v2' http://x\n", "layer-header"),
    "metric.yaml": ("expr: rate(layer_fallback_total[5m])\n", "metric-name"),
    "metric.py": ('QUERY = "sum(layer_negotiate_seconds)"\n', "metric-name"),
    "requirements.txt": ("anthropic==0.31.0\n", "old-sdk"),
    "requirements-dev.txt": ("anthropic[bedrock]~=0.49.0\n", "old-sdk"),
    "package.json": ('{"dependencies": {"@anthropic-ai/sdk": "^0.24.1"}}\n', "old-sdk"),
    "service.py": (
        "import requests\nrequests.get('http://layer-service/config')\n",
        "layer-service",
    ),
    "service.env": ("LAYER=http://layer-gateway:9000/lease\n", "layer-service"),
}


@pytest.mark.parametrize("name", [pytest.param(name, id=f"F55 {name}") for name in FOUND])
def test_what_a_layer_of_the_sdk_left_is_found(tmp_path: Path, name: str) -> None:
    text, rule = FOUND[name]
    (tmp_path / name).write_text(text)
    (finding,) = scan_tree(tmp_path).findings
    assert finding.rule == rule and finding.do
    if "layer_fallback_total" in text:
        assert "sublimate_layer_fallback_total" in finding.do


def test_what_only_looks_like_the_old_layer_is_left_alone(tmp_path: Path) -> None:
    texts = {
        "a.py": (
            "import anthropic\nfrom keras.layers import Dense\n"
            'NAME = "sublimate_layer_fallback_total"\nURL = "http://player-service.example/"\n'
        ),
        "requirements.txt": "anthropic==0.125.0\nanthropic>=1.17\nanthropic-tools==0.3.1\n",
        "b.sh": "curl -H 'x-layer: 1' http://layers.example/\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    assert scan_tree(tmp_path).findings == []


def test_an_old_client_is_found_line_by_line() -> None:
    found = scan_python("a.py", OLD_CLIENT)
    assert [(one.line, one.rule) for one in found] == [
        (3, "legacy-import"),
        (4, "legacy-import"),
        (9, "negotiate-endpoint"),
        (9, "redirect"),
        (10, "redirect"),
        (11, "deprecation-header"),
        (12, "redirect"),
    ]
    assert all(one.do and one.what and one.path == "a.py" for one in found)
    assert {one.severity for one in found} == {"breaks", "look"}


@pytest.mark.parametrize(
    "innocent",
    [
        "import requests\nr = requests.get(u, allow_redirects=True)\nr.status_code == 302",
        "x = 1  # /v1/layer/negotiate",
        '"""Docs of /v1/layer/negotiate."""',
        "import sublimate\nfrom sublimate import Engine",
        'Anthropic(base_url="http://127.0.0.1:8000")',
        'OpenAI(base_url="http://127.0.0.1:8000/v1")',
        'client.chat.completions.create(model="m")\nopenai_client.completions.create(model="m")',
        'x = "the sunset was fine"',
        "release = 1\nkey = 'please'",
        "negotiate(layer)",
    ],
)
def test_what_is_innocent_is_left_alone(innocent: str) -> None:
    assert scan_python("a.py", innocent) == []


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ('anthropic.Anthropic(base_url="http://h:8000/v1/")', "doubled-prefix"),
        ("from anthropic import HUMAN_PROMPT", "text-completions"),
        ("anthropic.AI_PROMPT", "text-completions"),
        ("anthropic_client.completions.create(prompt=p)", "text-completions"),
        ('os.environ["SUBLIMATE_LEGACY_LAYER"] = "1"', "legacy-flag"),
        ('subprocess.run(["sublimate", "serve", "--legacy-layer"])', "legacy-flag"),
        ('redis.llen("layer:questions")', "broker-key"),
        ('url = base + "?lease=" + lease', "lease"),
        ('query = "rate(vllm:generation_tokens_total[1m])"', "metric-name"),
        ("def broken(:", "unreadable"),
    ],
)
def test_each_rule_of_python_finds_its_case(text: str, rule: str) -> None:
    assert rules(scan_python("a.py", text)) == [rule]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.ts", 'await fetch(base + "/v1/layer/negotiate", {redirect: "manual"})', 2),
        ("a.ts", 'fetch(url, {redirect: "manual"})', 0),
        ("a.js", 'new Anthropic({apiKey: k, baseURL: "http://h:8000/v1"})', 1),
        ("a.js", "// see /v1/layer/negotiate", 0),
        ("a.js", 'if (reply.headers.get("sunset")) warn()', 1),
        ("a.sh", "sublimate serve --legacy-layer --legacy-port 9000", 1),
        ("a.yaml", "  - --legacy-layer", 1),
        ("a.toml", "legacy_layer = true", 1),
        (".env", "ANTHROPIC_BASE_URL=http://h:8000/v1", 1),
        (".env", "ANTHROPIC_BASE_URL=http://h:8000", 0),
        ("d.json", '"expr": "vllm:num_requests_running"', 1),
        ("d.json", '"expr": "sublimate_num_requests_running"', 0),
    ],
)
def test_other_files_are_read_by_line(name: str, text: str, expected: int) -> None:
    assert len(scan_lines(name, text)) == expected


def test_a_metric_is_told_by_its_new_name() -> None:
    (found,) = scan_lines("d.json", '"expr": "vllm:time_to_first_token_seconds_bucket"')
    assert found.do == "ask for sublimate_time_to_first_token_seconds_bucket"
    (found,) = scan_lines("d.json", '"expr": "vllm:lora_requests_info"')
    assert found.do == "there is nothing like it here"


def test_each_rule_says_what_to_do_and_has_a_case() -> None:
    here = Path(__file__).read_text(encoding="utf-8")
    for name, rule in RULES.items():
        assert rule.what and rule.do and name in here, name


def test_a_tree_is_walked_without_what_others_wrote(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "old.py").write_text(OLD_CLIENT)
    (tmp_path / "app" / "new.py").write_text("import anthropic\n")
    (tmp_path / "app" / "data.bin").write_bytes(b"/v1/layer/negotiate")
    (tmp_path / "app" / "latin.py").write_bytes(b"x = '\xe9'\n")
    (tmp_path / "app" / "huge.py").write_text("x = '/v1/layer/negotiate'\n" + "#" * (3 << 20))
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "a.js").write_text("'/v1/layer/negotiate'")
    (tmp_path / "Dockerfile").write_text("CMD sublimate serve --legacy-layer\n")
    (tmp_path / "link.py").symlink_to(tmp_path / "app" / "old.py")
    scan = scan_tree(tmp_path)
    assert scan.files == 3
    assert {one.path for one in scan.findings} == {"Dockerfile", "app/old.py"}
    assert scan.breaking == 4
    assert scan_tree(tmp_path / "app" / "old.py").files == 1
    with pytest.raises(ConfigError, match="nothing to scan"):
        scan_tree(tmp_path / "nowhere")


def command(*words: str, code: int) -> str:
    environment = {**os.environ, "COLUMNS": "160"}
    done = subprocess.run(
        [sys.executable, "-m", "sublimate", "rollout", *words],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_the_command_tells_and_ends_with_its_status(tmp_path: Path) -> None:
    file = tmp_path / "old.py"
    file.write_text(OLD_CLIENT)
    text = command("scan", str(file), code=1)
    assert f"{file}:9: negotiate-endpoint" in text and "7 findings, 3 of them will break" in text
    said = json.loads(command("scan", str(file), "--json", code=1))
    assert said["files"] == 1 and said["findings"][0]["rule"] == "legacy-import"
    file.write_text("import anthropic\n")
    assert "0 findings" in command("scan", str(file), code=0)


# ---- metrics -------------------------------------------------------------------------------------
def test_old_names_lead_to_names_that_the_server_has() -> None:
    """Against the exposition of a server that has done something."""
    from harness import serve
    from sublimate.config import EdgeSettings

    settings = EdgeSettings(metrics_compat="vllm")
    with serve(settings=settings) as served:
        assert served.message().status_code == 200
        told = served.client.get("/metrics").text
    names = {line.split("{")[0].split()[0] for line in told.splitlines() if line[:1] != "#"}
    families = {line.split()[2] for line in told.splitlines() if line.startswith("# TYPE")}
    for migration in MIGRATIONS:
        assert migration.new in names | families, migration.new
        if migration.source == "vLLM":
            assert migration.old in names | families, migration.old
    assert len([one for one in MIGRATIONS if one.source == "vLLM"]) == len(NAMES)
    missing = {f"sublimate_{name}" for name in NEW_HERE} - names - families
    assert missing <= {"sublimate_quic_handshake_seconds"}, missing
    launches = [line for line in told.splitlines() if "plan_launch_seconds_total{" in line]
    assert float(launches[0].split()[-1]) > 0


def test_parts_of_histograms_keep_their_endings() -> None:
    assert new_name("vllm:e2e_request_latency_seconds_sum") == (
        "sublimate_e2e_request_latency_seconds_sum"
    )
    assert new_name("vllm:prompt_tokens_total") == "sublimate_prompt_tokens_total"
    assert new_name("vllm:prompt_tokens") == "sublimate_prompt_tokens_total", "as the counter is"
    assert new_name("nothing") == ""
    with pytest.raises(ValueError, match="name"):
        new_name("")


def test_the_table_is_printed_and_is_data() -> None:
    said = json.loads(command("metrics", "--json", code=0))
    assert len(said["migrations"]) == len(MIGRATIONS) and said["new"] == NEW_HERE
    assert "tgi_queue_size" in command("metrics", code=0)


# ---- quic ----------------------------------------------------------------------------------------
def serve_h3(
    certificate: Path,
    key: Path,
    ports: list[int],
    ready: threading.Event,
    ended: threading.Event,
) -> None:
    """An HTTP/3 server of aioquic's own parts, until it is told to end."""
    from aioquic.asyncio import QuicConnectionProtocol
    from aioquic.asyncio import serve as listen
    from aioquic.h3.connection import H3Connection
    from aioquic.h3.events import HeadersReceived
    from aioquic.quic.configuration import QuicConfiguration

    tickets: dict[bytes, Any] = {}
    body = b'{"version": "9.9", "certificate_sha256": "abc", "ports": {}}'

    class Protocol(QuicConnectionProtocol):
        h3: H3Connection | None = None

        def quic_event_received(self, event: Any) -> None:
            self.h3 = self.h3 or H3Connection(self._quic)
            for said in self.h3.handle_event(event):
                if isinstance(said, HeadersReceived):
                    self.h3.send_headers(said.stream_id, [(b":status", b"200")])
                    self.h3.send_data(said.stream_id, body, True)
                    self.transmit()

    async def run() -> None:
        configuration = QuicConfiguration(
            is_client=False, alpn_protocols=["h3"], max_datagram_frame_size=65536
        )
        configuration.load_cert_chain(certificate, key)
        server = await listen(
            "127.0.0.1",
            0,
            configuration=configuration,
            create_protocol=Protocol,
            session_ticket_fetcher=lambda ticket: tickets.pop(ticket, None),
            session_ticket_handler=lambda ticket: tickets.__setitem__(ticket.ticket, ticket),
        )
        ports.append(server._transport.get_extra_info("sockname")[1])
        ready.set()
        await asyncio.to_thread(ended.wait)
        server.close()
        await asyncio.sleep(0.05)

    asyncio.run(run())


@pytest.fixture(scope="module")
def h3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    pytest.importorskip("aioquic")
    certificate, key = own_certificate(tmp_path_factory.mktemp("tls"))
    ready, ended, ports = threading.Event(), threading.Event(), []
    thread = threading.Thread(target=serve_h3, args=(certificate, key, ports, ready, ended))
    thread.start()
    assert ready.wait(20)
    yield ports[0], certificate
    ended.set()
    thread.join(10)


def test_a_server_that_is_there_is_told_with_its_ways(h3: tuple[int, Path]) -> None:
    found = check_quic("localhost", h3[0], certificate=h3[1], timeout_seconds=10)
    assert found.reachable and found.status == 200 and not found.why
    assert (found.protocol, found.version) == ("h3", "1 (RFC 9000)")
    assert found.ticket and found.early_accepted
    assert 0 < found.handshake_ms < found.first_byte_ms and found.early_first_byte_ms > 0
    assert 0 < found.round_trip_ms and found.cipher
    assert (found.server_version, found.certificate_sha256) == ("9.9", "abc")


def test_a_certificate_that_is_not_trusted_is_told(h3: tuple[int, Path]) -> None:
    found = check_quic("localhost", h3[0], timeout_seconds=10)
    assert not found.reachable and "handshake failed" in found.why
    assert "--cacert FILE" in found.why
    assert check_quic("localhost", h3[0], insecure=True, timeout_seconds=10).reachable


def test_the_certificate_of_ones_own_server_is_trusted_for_this_machine_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUBLIMATE_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("SUBLIMATE_CONFIG", raising=False)
    assert rollout._own_certificate("localhost") is None
    certificate, _ = own_certificate(tmp_path / "tls")
    for name in ("localhost", "127.0.0.1", "::1"):
        assert rollout._own_certificate(name) == certificate
    assert rollout._own_certificate("llm.example") is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("llm.example", ("llm.example", 8443)),
        ("llm.example:443", ("llm.example", 443)),
        ("127.0.0.1:1", ("127.0.0.1", 1)),
        ("[::1]", ("::1", 8443)),
        ("[::1]:9000", ("::1", 9000)),
        ("2001:db8::7", ("2001:db8::7", 8443)),
        ("https://llm.example", ("llm.example", 8443)),
        ("https://[::1]:7/v1/messages?x=1", ("::1", 7)),
        (" llm.example:443 ", ("llm.example", 443)),
    ],
)
def test_a_host_may_be_named_in_many_ways(text: str, expected: tuple[str, int]) -> None:
    assert parse_target(text) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no HOST"),
        (":8443", "is no HOST"),
        ("llm.example:many", "is no HOST.*many"),
        ("llm.example:0", "is no HOST"),
        ("llm.example:70000", "is no HOST.*range"),
        ("[::1", "is no HOST"),
        ("1:2:3", "is no HOST"),
        ("two words", "is no HOST"),
        ("http://llm.example", "by https, not by http"),
    ],
)
def test_what_is_no_host_is_told(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_target(text)


def test_where_nothing_answers_it_says_what_that_may_be() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as deaf:
        deaf.bind(("127.0.0.1", 0))
        begun = time.monotonic()
        port = deaf.getsockname()[1]
        found = check_quic("127.0.0.1", port, insecure=True, timeout_seconds=0.3)
    assert not found.reachable and "firewall drops UDP" in found.why
    assert time.monotonic() - begun < 10
    with pytest.raises(PeerError, match="no host"):
        check_quic("host.invalid", 1)
    with pytest.raises(ConfigError, match="--timeout"):
        check_quic("localhost", 1, timeout_seconds=0)
    with pytest.raises(ConfigError, match="no such file"):
        check_quic("localhost", 1, certificate=Path("nowhere.pem"))


# ---- rehearse ------------------------------------------------------------------------------------
VERSION = "0.0.9"


def pack(folder: Path, *, broken: bool = False) -> Path:
    """A wheel of this tree: its sources, and the extension that these tests run with."""
    from sublimate import _core

    wheel = folder / f"sublimate-{VERSION}-py3-none-any.whl"
    info = f"sublimate-{VERSION}.dist-info"
    files = {path.removeprefix("src/"): house.ROOT / path for path in house.tracked_files()
             if path.startswith("src/sublimate/")}  # fmt: skip
    extension = Path(str(_core.__file__))
    files[f"sublimate/{extension.name}"] = extension
    texts = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: sublimate\nVersion: {VERSION}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    data = {name: path.read_bytes() for name, path in files.items()}
    data |= {name: text.encode() for name, text in texts.items()}
    data["sublimate/policy/decide.wasm"] = (house.ROOT / "clients/policy/decide.wasm").read_bytes()
    if broken:
        data["sublimate/cli/serve.py"] = b"raise RuntimeError('this version does not start')\n"
    digests = {
        name.removeprefix("sublimate/"): hashlib.sha256(content).hexdigest()
        for name, content in data.items()
        if name.startswith("sublimate/")
    }
    data["sublimate/MANIFEST"] = manifest.development_manifest(VERSION, digests)
    lines = []
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in data.items():
            archive.writestr(name, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            lines.append(f"{name},sha256={digest.decode()},{len(content)}")
        archive.writestr(f"{info}/RECORD", "\n".join([*lines, f"{info}/RECORD,,"]))
    return wheel


@pytest.fixture
def scripted(tmp_path: Path) -> list[str]:
    """Arguments of `serve` for an engine that computes nothing."""
    model = fetch("default", cache_folder(Settings()))
    script = tmp_path / "script.json"
    body = {"answers": [[[], [1000, 1001]]], "vocabulary": 49152}
    script.write_bytes(msgspec.json.encode(body))
    return ["--model", str(model.path), "--script", str(script), "--log-level", "error"]


def test_a_version_is_installed_started_and_asked(tmp_path: Path, scripted: list[str]) -> None:
    pytest.importorskip("pip")
    wheel = pack(tmp_path)
    said = command("rehearse", "--wheel", str(wheel), "--json", "--", *scripted, code=0)
    found = msgspec.json.decode(said, type=Rehearsal)
    assert found.version == VERSION and not found.why, found.why
    assert [step.name for step in found.steps] == [
        "scratch environment",
        "install",
        "start to ready",
        "first answer",
        "second answer",
        "stop",
    ]
    assert all(step.seconds > 0 for step in found.steps)
    assert found.steps[3].said == "3 tokens", "two and the end"


def test_a_version_that_does_not_start_is_told(tmp_path: Path, scripted: list[str]) -> None:
    pytest.importorskip("pip")
    wheel = pack(tmp_path, broken=True)
    text = command("rehearse", "--wheel", str(wheel), "--", *scripted, code=1)
    assert "this version does not start" in text and "scratch environment" in text


def test_a_rehearsal_wants_something_to_go_back_to(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--wheel FILE"):
        rehearse("", [])
    with pytest.raises(ConfigError, match="no such file"):
        rehearse(str(tmp_path / "no.whl"), [])
