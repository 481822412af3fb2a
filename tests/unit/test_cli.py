"""The command line: help, exit codes, what a wrong flag says, JSON for machines."""

import http.server
import io
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

import sublimate
from sublimate import _core
from sublimate.cli import bench, chat, json_lines, main, screen
from sublimate.cli.output import run_guarded
from sublimate.cli.peer import Peer
from sublimate.config import (
    FIELDS,
    EdgeSettings,
    ServerSettings,
    Settings,
    format_size,
    load_settings,
)
from sublimate.edge.textmodel import text_model_from_metadata
from sublimate.errors import (
    ConfigError,
    EngineError,
    ExitCode,
    HardwareError,
    ListenError,
    ModelError,
    PeerError,
    RequestError,
    SublimateError,
    nearest,
)
from sublimate.keys import KeyLimits, add_key
from sublimate.model.registry import KNOWN
from tiny_model import tiny_metadata


@pytest.fixture(autouse=True)
def own_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def run(*arguments: str, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", **environment}
    variables["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-m", "sublimate", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=60)
    assert result.returncode == code, result.stdout + result.stderr
    return result


def test_help_names_every_command() -> None:
    text = run("--help").stdout
    for command in (
        "serve",
        "chat",
        "pull",
        "models",
        "probe",
        "limits",
        "bench",
        "config",
        "verify",
        "sign",
        "uninstall",
        "version",
    ):
        assert f" {command} " in text


def test_help_of_serve_names_every_setting() -> None:
    text = run("serve", "--help").stdout
    for field in FIELDS.values():
        if not field.hidden:
            assert field.flag in text, field.name


def test_versions() -> None:
    assert run("version").stdout.startswith("sublimate ")
    told = msgspec.json.decode(run("version", "--json").stdout)
    assert set(told) == {"version", "kind"} and told["kind"] in ("release", "dev", "unsigned")


def test_a_wrong_flag_or_command_names_its_neighbour() -> None:
    assert "--port" in run("serve", "--prot", "1", code=2).stderr
    assert "serve" in run("serv", code=2).stderr


def test_a_wrong_setting_is_exit_code_2_and_no_traceback() -> None:
    result = run("serve", "--profile", "low-latnecy", code=2)
    assert "Did you mean 'low-latency'?" in result.stderr and "flag --profile" in result.stderr
    assert "Traceback" not in result.stderr
    assert "environment SUBLIMATE_PORT" in run("serve", code=2, SUBLIMATE_PORT="x").stderr


def test_a_fallback_that_is_none_is_exit_code_2_before_anything_else() -> None:
    url = "http://a\r\nx: y"
    result = run("serve", "--port", "0", "-m", "/absent.gguf", "--fallback", url, code=2)
    assert "fallback: " in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize("alias", ["x", "x=", "=default"])
def test_an_alias_of_nothing_is_exit_code_2_before_anything_else(alias: str) -> None:
    refused = run("serve", "--port", "0", "--alias", alias, code=2).stderr
    assert "expected NAME=MODEL" in refused and "edge" not in refused


def test_a_library_that_is_not_there_is_told() -> None:
    assert "/nowhere is no folder" in run("ls", "--library", "/nowhere", code=3).stderr
    assert "sublimate pull" in run("ls").stdout


def test_a_server_is_no_fallback_of_its_own() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    own = f"http://localhost:{port}/v1/chat/completions"
    result = run("serve", "--port", port, "-m", "/absent.gguf", "--fallback", own, code=2)
    assert "this server itself listens there" in result.stderr


def test_more_memory_than_the_machine_has_is_refused_with_what_it_has() -> None:
    has = format_size(_core.probe()["memory_bytes"])
    result = run("serve", "--port", "0", "--kv-memory", "100TiB", code=2)
    assert f"kv_memory = 100.0 TiB: this machine has {has} of memory." in result.stderr
    third = str(_core.probe()["memory_bytes"] // 3)
    assert "for each of 4 engines" in run("serve", "-w", "4", "--kv-memory", third, code=2).stderr


def test_an_unknown_model_is_exit_code_3() -> None:
    result = run("serve", "--port", "0", "--model", "smolm2-135m", code=3)
    assert "Did you mean 'smollm2-135m'?" in result.stderr
    assert "cannot be read" in run("serve", "--port", "0", "-m", "/absent.gguf", code=3).stderr


def test_a_taken_port_is_exit_code_5_before_any_download() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run("serve", "--port", str(port), code=5)
    assert f"Port {port}" in result.stderr and "--port" in result.stderr


def test_nothing_there_is_exit_code_6() -> None:
    result = run("bench", "http://127.0.0.1:1", code=6)
    assert "Nothing answers at 127.0.0.1:1" in result.stderr


def test_models_without_any() -> None:
    rows = msgspec.json.decode(run("models", "--json").stdout)
    assert sum(row["default"] for row in rows) == 1
    assert all(row["path"] is None for row in rows)
    assert "sublimate pull" in run("models").stdout


def test_config_show_tells_sources_and_hides_secrets() -> None:
    result = run("config", "show", "--json", SUBLIMATE_API_KEYS="topsecret", SUBLIMATE_PORT="81")
    assert "topsecret" not in result.stdout
    rows = {row["name"]: row for row in msgspec.json.decode(result.stdout)}
    assert set(rows) == {name for name, field in FIELDS.items() if not field.hidden}
    assert rows["port"]["value"] == 81
    assert rows["port"]["source"] == "environment SUBLIMATE_PORT"
    assert rows["api_keys"]["value"] == "1 set"
    assert "SUBLIMATE_PORT" in run("config", "show").stdout


def test_config_show_tells_what_the_help_tells_and_what_is_set() -> None:
    (hidden,) = [field for field in FIELDS.values() if field.hidden]
    assert hidden.flag not in run("serve", "--help").stdout
    assert hidden.name not in run("config", "show").stdout
    result = run("config", "show", "--json", **{hidden.environment: "answers.json"})
    rows = {row["name"]: row["value"] for row in msgspec.json.decode(result.stdout)}
    assert rows[hidden.name] == "answers.json"


def test_a_mistyped_variable_is_noted() -> None:
    assert "Did you mean 'threads'?" in run("config", "show", SUBLIMATE_THREDS="1").stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (ModelError("x"), 3),
        (EngineError("x"), 4),
        (HardwareError("x"), 4),
        (RequestError("x"), 4),
        (ListenError("x"), 5),
        (PeerError("x"), 6),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_codes_are_stable(error: BaseException, code: int) -> None:
    def action() -> int:
        raise error

    assert run_guarded(action) == code


def test_a_bug_keeps_its_traceback() -> None:
    def action() -> int:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError):
        run_guarded(action)
    assert SublimateError.exit_code == ExitCode.BUG


def test_nearest_is_silent_about_what_is_far() -> None:
    assert nearest("zzz", ["port"]) == ""
    assert nearest("prot", ["port", "host"]) == " Did you mean 'port'?"


@pytest.mark.parametrize(
    ("text", "counts"), [("1,32", [1, 32]), (" 5 ", [5]), ("", []), ("512,", [512])]
)
def test_lists_of_counts(text: str, counts: list[int]) -> None:
    assert bench.parse_counts(text, "--batch") == counts


@pytest.mark.parametrize("text", ["0", "1,-2", "x", ",", "1;2"])
def test_what_is_no_list_of_counts(text: str) -> None:
    with pytest.raises(ConfigError, match="--batch"):
        bench.parse_counts(text, "--batch")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "either the URL"),
        (("http://x", "--engine"), "either the URL"),
        (("http://x", "--api", "mesages"), "Did you mean 'messages'?"),
        (("http://x", "--prompt", "1,2"), "one number"),
        (("http://x", "--extra", "[1]"), "JSON object"),
    ],
)
def test_wrong_bench_arguments(arguments: tuple[str, ...], said: str) -> None:
    assert said in run("bench", *arguments, code=2).stderr


# ---- screens ------------------------------------------------------------------------------------
ENGINE_INFO: dict[str, Any] = {
    "architecture": "llama",
    "parameters": 134_515_008,
    "weight_bytes": 98_000_000,
    "isa": "avx512",
    "threads": 2,
    "exact": False,
    "context_length": 4096,
    "trained_context_length": 8192,
    "kv_pages": 4096,
    "kv_bytes": 1 << 30,
    "kv_type": "bf16",
}


def shown(settings: Settings, **edge: str) -> str:
    console = Console(file=io.StringIO(), width=120)
    url = "http://127.0.0.1:8000"
    told = {"template": "t1", **edge}
    console.print(screen.start_screen(settings, "tiny", url, ENGINE_INFO, told, 1.25))
    console.print(screen.curl_line(url, settings), soft_wrap=True)
    return console.file.getvalue()


def test_the_start_screen_says_what_matters() -> None:
    text = shown(Settings())
    for part in (
        "tiny (llama, 135 M parameters, 93.5 MiB)",
        "t1",
        "avx512, 2 threads, quantised",
        "4,096 tokens (trained for 8,192)",
        "1.0 GiB for 131,072 tokens (bf16)",
        "high-throughput",
        "after 1.2 s",
        "http://127.0.0.1:8000",
    ):
        assert part in text, part


def test_the_start_screen_tells_of_workers_fallback_and_a_template_that_is_missing() -> None:
    plain = shown(Settings())
    assert "workers" not in plain and "fallback" not in plain
    edge = EdgeSettings(fallback="https://llm.example/v1")
    text = shown(Settings(edge=edge, server=ServerSettings(workers=3)))
    assert "3 engines, 3 edges" in text
    assert "https://llm.example/v1" in text
    metadata = tiny_metadata()
    assert str(text_model_from_metadata("m", metadata).template.report).startswith("model ")
    del metadata["tokenizer.chat_template"]
    missing = text_model_from_metadata("m", metadata).template.report
    assert "none in the model's file, built-in" in shown(Settings(), template=str(missing))


@pytest.mark.parametrize(("host", "tells"), [("192.0.2.1", True), ("localhost", False)])
def test_the_start_screen_tells_that_everybody_may_ask(host: str, tells: bool) -> None:
    server = ServerSettings(host=host)
    assert ("who reaches this address may ask" in shown(Settings(server=server))) is tells
    keyed = Settings(server=server, edge=EdgeSettings(api_keys=("k",)))
    assert "who reaches" not in shown(keyed)


def test_the_start_screen_tells_where_https_is_and_what_to_trust() -> None:
    edge = EdgeSettings(tls_certificate="folder/certificate.pem")
    told = {"https": "https://127.0.0.1:8443", "certificate_sha256": "f" * 64}
    text = shown(Settings(edge=edge), **told)
    assert "https://127.0.0.1:8443, HTTP/3 on the UDP port of that number" in text
    assert "folder/certificate.pem" in text and "f" * 64 in text
    off = Settings(edge=edge, server=ServerSettings(http3=False))
    assert "HTTP/3" not in shown(off, **told)


def test_the_start_screen_tells_steps_that_run_otherwise() -> None:
    many = {"isa": "avx512", "threads": 8, "measured": []}
    same = {**ENGINE_INFO, "many_rows": many, "few_rows": many}
    assert screen._variant(same) == "avx512, 8 threads"  # pyright: ignore[reportPrivateUsage]
    other = {**same, "few_rows": {"isa": "avx2", "threads": 4, "measured": []}}
    text = screen._variant(other)  # pyright: ignore[reportPrivateUsage]
    assert text == "avx512, 8 threads (small steps avx2, 4 threads)"


def test_the_curl_line_is_one_line_of_valid_json() -> None:
    strict = EdgeSettings(profile_contract="strict", api_keys=("secret",))
    for settings in (Settings(), Settings(edge=strict)):
        line = next(line for line in shown(settings).splitlines() if line.startswith("curl"))
        body = msgspec.json.decode(line.partition("-d '")[2].rstrip("' "))
        assert body["messages"] and body["stream"] is True
        assert "secret" not in line
    assert body["execution_profile"] == "high-throughput" and "YOUR_KEY" in line


def test_the_start_screen_knows_of_keys_with_names(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    for edge, shown_key, count in (
        (EdgeSettings(keys_file=str(path)), "none", ""),
        (EdgeSettings(keys_file=str(path), api_keys=("secret",)), "YOUR_KEY", "2"),
        (EdgeSettings(keys_file=str(path)), "YOUR_KEY", "1"),
    ):
        lines = shown(Settings(edge=edge)).splitlines()
        assert any(f"x-api-key: {shown_key}" in line for line in lines)
        told = [line.split()[-1] for line in lines if line.startswith("API keys")]
        assert told == ([count] if count else [])
        if not path.exists():
            add_key(path, "alice", KeyLimits())


def test_json_events_are_lines(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    reporter = json_lines.JsonReporter(Settings(), "tiny", 0.0)
    reporter.fetching("downloading", 1, 2)
    reporter.fetching("downloading", 2, 2)
    reporter.loading(0.5)
    reporter.loading(1.0)
    reporter.ready("http://127.0.0.1:81", ENGINE_INFO, {"template": "t1"})
    reporter.lost("engine", "signal SIGKILL", 0.1)
    reporter.draining(1.0)
    reporter.stopped()
    lines = [msgspec.json.decode(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert [line["event"] for line in lines] == [
        "fetching",
        "loaded",
        "ready",
        "lost",
        "draining",
        "stopped",
    ]
    assert lines[2]["port"] == 81 and lines[2]["model"] == "tiny"


def test_plain_output_has_no_bars(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = screen.ScreenReporter(Settings(), "tiny", 0.0)
    reporter.fetching("downloading", 1, 2)
    reporter.loading(0.5)
    reporter.ready("http://127.0.0.1:81", ENGINE_INFO, {})
    reporter.lost("engine", "signal SIGKILL", 0.1)
    reporter.ready("http://127.0.0.1:81", ENGINE_INFO, {})
    reporter.unavailable("http://127.0.0.1:81", "load_failed", "no [b]tag[/x]")
    reporter.reloaded("")
    reporter.noted("Only a restart takes port.")
    reporter.stopped()
    text = capsys.readouterr().out
    later = text.partition("curl")[2].splitlines()[2:]
    assert len(later) == 6 and all(re.match(r"\d\d:\d\d:\d\d \w", line) for line in later), later
    assert "no [b]tag[/x]" in text
    assert "\x1b" not in text and "Ready again" in text and "signal SIGKILL" in text
    assert text.count("curl") == 1


# ---- help and tables -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    "command",
    ["", "serve", "chat", "bench", "debug", "convert", "keys add", "rollout rehearse", "tax"],
)
def test_f60_help_cuts_nothing_at_80_columns(command: str) -> None:
    text = run(*command.split(), "--help", COLUMNS="80").stdout
    assert "--help" in text and "\u2026" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_f60_help_has_groups_and_choices() -> None:
    text = run("--help").stdout
    assert all(f"\u2500 {group} \u2500" in text for group in ("Serve", "Use", "Models", "Measure"))
    text = run("help", "serve").stdout
    assert "SUBLIMATE_QUEUE_MAX" in text
    for field in FIELDS.values():
        if field.choices and not field.hidden:
            assert "|".join(choice or '""' for choice in field.choices) in text, field.name


def test_f60_version_list_and_run() -> None:
    versions = {run(flag).stdout for flag in ("--version", "-V")}
    assert versions == {f"sublimate {sublimate.__version__}\n"}
    assert run("list", "--json").stdout == run("ls", "--json").stdout
    assert "sublimate chat --model smollm2" in run("run", "smollm2", code=2).stderr


def test_f60_a_piped_table_has_a_row_in_each_line() -> None:
    variables = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    command = [sys.executable, "-m", "sublimate", "models"]
    done = subprocess.run(command, capture_output=True, text=True, env=variables, check=True)
    for name, entry in KNOWN.items():
        assert any(name in line and entry.title in line for line in done.stdout.splitlines()), name


@pytest.mark.parametrize("command", ["models", "version", "ls"])
def test_a_full_disk_is_named(command: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "sublimate", command],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == "Error: Cannot write the output: No space left on device.\n"


# ---- chat ---------------------------------------------------------------------------------------
class Said:
    """What a person types."""

    def __init__(self, lines: list[str]) -> None:
        self._lines: Iterator[str] = iter(lines)

    def __call__(self, prompt: str) -> str:
        try:
            return next(self._lines)
        except StopIteration:
            raise EOFError from None


def test_f59_a_conversation_has_turns_commands_and_several_lines(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sent: list[list[str]] = []

    def answer(self: chat.Conversation) -> Iterator[str]:
        sent.append([message["content"] for message in self.messages])
        if sent[-1][-1] == "fail" or len(sent) == 4:
            raise PeerError("no")
        yield "ans"
        if len(sent) == 5:
            raise KeyboardInterrupt
        yield "wer"

    monkeypatch.setattr(chat.Conversation, "_pieces", answer)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    typed = ["one", "", "fail", "two", "/help", "/retry", "/retry", "/bogus", "more"]
    typed += ["/system Be brief.", "/new", "three"]
    monkeypatch.setattr("builtins.input", Said([*typed, '"""four', "five", '  six"""']))
    talk = chat.Conversation(Peer("http://127.0.0.1:1"), {})
    history = tmp_path / "folder" / "history"
    assert chat._converse(talk, "", history) == ExitCode.OK
    assert sent == [
        ["one"],
        ["one", "answer", "fail"],
        ["one", "answer", "two"],
        ["one", "answer", "two"],
        ["one", "answer", "two"],
        ["one", "answer", "two", "ans", "more"],
        ["three"],
        ["three", "answer", "four\nfive\n  six"],
    ]
    assert talk.system == "Be brief."
    assert capsys.readouterr().out.count("There is no command /bogus.") == 1
    assert history.stat().st_mode & 0o777 == 0o600


class Talker(http.server.BaseHTTPRequestHandler):
    """Answers with two words; between them the person at the terminal presses Ctrl-C."""

    def do_POST(self) -> None:
        self.send_response(200)
        self.end_headers()
        for word in ("one ", "two"):
            delta = {"type": "text_delta", "text": word}
            event = {"type": "content_block_delta", "index": 0, "delta": delta}
            self.wfile.write(b"data: " + msgspec.json.encode(event) + b"\n\n")

    def log_message(self, format: str, *args: object) -> None: ...


def test_an_interrupted_answer_is_kept_as_the_model_said_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = chat.read_event
    events = 0

    def interrupted(data: bytes) -> Any:
        nonlocal events
        events += 1
        if events == 2:
            raise KeyboardInterrupt
        return real(data)

    monkeypatch.setattr(chat, "read_event", interrupted)
    with http.server.HTTPServer(("127.0.0.1", 0), Talker) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        talk = chat.Conversation(Peer(url), {"max_tokens": 5, "system": ""})
        talk.ask("x")
        server.shutdown()
    assert talk.messages[1]["content"] == "one ", "what is sent back is what the model wrote"
    assert "one  ..." in capsys.readouterr().out


def test_chat_refuses_what_is_no_url() -> None:
    assert "no http" in run("chat", "--url", "ftp://x", code=6).stderr


class Listing(http.server.BaseHTTPRequestHandler):
    """Serves one model, under the name of its file."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path in ("/readyz", "/v1/models/own") else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...


def test_chat_asks_a_server_for_the_model_that_was_named(tmp_path: Path) -> None:
    (tmp_path / "own.gguf").write_bytes(b"GGUF")
    with http.server.HTTPServer(("127.0.0.1", 0), Listing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        for chosen, called in (
            ({}, "default"),
            ({"model": "own"}, "own"),
            ({"model": str(tmp_path / "own.gguf")}, "own"),
            ({"model": "smollm2"}, None),
        ):
            effective = load_settings(chosen)
            found = chat._called(effective, Peer(url))  # pyright: ignore[reportPrivateUsage]
            assert found == called, chosen
        refused = run("chat", "--url", url, "--model", "nosuch", code=6).stderr
        assert "does not serve 'nosuch'" in refused
        server.shutdown()


def test_every_flag_of_serve_is_a_setting() -> None:
    import inspect

    names = set(inspect.signature(main.serve).parameters)
    assert names - {"json", "config"} == set(FIELDS)
