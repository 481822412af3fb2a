"""What launches an agent and what looks after a server, against a real one: the environment is that
of the served context, a short one is refused with what to set, and doctor sees the cache."""

import io
import os
import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from harness import Served, serve
from sublimate.cli import doctor, launch, peer, ps
from sublimate.cli.certificate import own_certificate
from sublimate.config import EdgeSettings, Effective, ServerSettings, Settings
from sublimate.errors import ConfigError, PeerError
from tiny_model import tiny_model

CONTEXT_TOKENS = 40_000
KEY = "a key's $secret"


@pytest.fixture(scope="module")
def agent_server() -> Iterator[Served]:
    with serve(settings=settings_of().edge, context_tokens=CONTEXT_TOKENS) as served:
        yield served


def settings_of(port: int = 0) -> Settings:
    data = os.environ["XDG_DATA_HOME"]
    edge = EdgeSettings(api_keys=(KEY,), data_dir=data)
    return Settings(server=ServerSettings(port=port, cache_dir=data), edge=edge)


def effective(served: Served, **changes: object) -> Effective:
    return Effective(msgspec.structs.replace(settings_of(served.port), **changes), {})


def test_a33_the_environment_is_that_of_the_served_context(agent_server: Served) -> None:
    asked = peer.Peer(agent_server.url, KEY)
    variables = launch.environment(asked, asked.model())
    assert variables["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == str(CONTEXT_TOKENS)
    assert int(variables["CLAUDE_CODE_MAX_OUTPUT_TOKENS"]) == CONTEXT_TOKENS // 8
    assert variables["ANTHROPIC_BASE_URL"] == agent_server.url
    assert variables["ANTHROPIC_MODEL"] == "tiny"
    assert variables["CLAUDE_CODE_ATTRIBUTION_HEADER"] == "0"


def test_f63_a_window_that_the_client_would_raise_is_not_set() -> None:
    name = "CLAUDE_CODE_AUTO_COMPACT_WINDOW"
    for context, wanted in ((32_768, None), (99_999, None), (100_000, "100000")):
        model = peer.Model(id="m", max_input_tokens=context, max_tokens=1000)
        start = launch.AGENTS["claude"].start(peer.Peer("http://localhost:1"), model)
        assert start.variables["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == str(context)
        assert start.variables.get(name) == wanted
        assert (name in start.without) == (wanted is None)


def test_f21_codex_and_opencode_get_what_is_served() -> None:
    model = peer.Model(id="m", max_input_tokens=40_000, max_tokens=9000)
    asked = peer.Peer("http://localhost:1", KEY)
    codex = launch.AGENTS["codex"].start(asked, model)
    settings = tomllib.loads("\n".join(codex.flags[1::2]))
    assert set(codex.flags[::2]) == {"-c"} and KEY not in str(codex.flags)
    assert settings["model"] == "m" and settings["model_context_window"] == 40_000
    provider = settings["model_providers"][settings["model_provider"]]
    assert provider["base_url"] == "http://localhost:1/v1"
    assert provider["wire_api"] == "responses"
    assert codex.variables[provider["env_key"]] == KEY
    opencode = launch.AGENTS["opencode"].start(asked, model)
    settings = msgspec.json.decode(opencode.variables["OPENCODE_CONFIG_CONTENT"])
    name, _, chosen = settings["model"].partition("/")
    provider = settings["provider"][name]
    assert provider["options"]["apiKey"] == KEY
    assert provider["models"][chosen]["limit"] == {"context": 40_000, "output": 5000}


def test_a35_a_context_under_32k_is_refused_with_what_to_set(
    shared: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = peer.Peer(shared.url)
    with pytest.raises(ConfigError, match=r"--context-length 32768.*--rope-scaling yarn"):
        launch.check_context(asked.url, asked.model(), any_context=False)
    launch.check_context(asked.url, asked.model(), any_context=True)
    assert "8,192" in capsys.readouterr().err
    with pytest.raises(ConfigError):
        launch.launch_env(asked, "sh", any_context=False)


def test_a92_doctor_warns_of_a_context_under_32k(shared: Served) -> None:
    diagnosis = doctor.diagnose(settings_of(shared.port), peer.Peer(shared.url), must_answer=True)
    (context,) = [finding for finding in diagnosis.findings if finding.topic == "context"]
    assert context.verdict == "notice" and "32,768" in context.text
    assert "--context-length 32768" in context.advice and "--rope-scaling yarn" in context.advice


def test_doctor_measures_what_the_second_turn_reads_from_the_cache(agent_server: Served) -> None:
    asked = peer.Peer(agent_server.url, KEY)
    turns = doctor.two_turns(asked)
    assert turns.share >= doctor.SHARE_WANTED and turns.miss_reason == ""
    assert turns.second_tokens > turns.first_tokens > 1000
    diagnosis = doctor.diagnose(settings_of(agent_server.port), asked, must_answer=True)
    assert diagnosis.healthy, diagnosis.findings
    topics = {finding.topic for finding in diagnosis.findings}
    assert {"cores", "clock", "data folder", "context", "keys", "two turns"} <= topics
    assert not topics & {"port", "model", "memory"}, "of a server that would be started here"
    (server,) = [finding.text for finding in diagnosis.findings if finding.topic == "server"]
    assert server == f"{agent_server.url} serves tiny."
    beside = doctor.diagnose(settings_of(agent_server.port), asked, must_answer=False)
    assert {"model", "memory", "server"} <= {finding.topic for finding in beside.findings}


@pytest.mark.parametrize(("reason", "said"), [("unavailable", "--kv-memory"), ("", "proxy")])
def test_doctor_says_what_to_do_about_a_cache_that_missed(reason: str, said: str) -> None:
    missed = doctor.TwoTurns(
        first_tokens=1000, second_tokens=1100, cached_tokens=100, miss_reason=reason
    )
    finding = doctor._turns_finding(missed)  # pyright: ignore[reportPrivateUsage]
    assert finding.verdict == "problem" and "10%" in finding.text and said in finding.advice


def test_doctor_without_a_server_is_a_problem_only_where_one_was_named() -> None:
    nobody = peer.Peer("http://127.0.0.1:1")
    for must_answer, verdict in ((True, "problem"), (False, "notice")):
        diagnosis = doctor.diagnose(settings_of(), nobody, must_answer=must_answer)
        (found,) = [finding for finding in diagnosis.findings if finding.topic == "server"]
        assert found.verdict == verdict and "sublimate serve" in found.advice
        assert diagnosis.healthy != must_answer


def test_ps_tells_a_server_by_its_url(agent_server: Served) -> None:
    row = ps.row_of(peer.Peer(agent_server.url, KEY))
    assert (row.model, row.context_tokens) == ("tiny", CONTEXT_TOKENS)
    assert row.running == row.waiting == 0 and 0 <= row.kv_share <= 1
    with pytest.raises(PeerError, match="wants a key"):
        ps.row_of(peer.Peer(agent_server.url))
    with pytest.raises(PeerError, match="No server is ready"):
        ps.row_of(peer.Peer("http://127.0.0.1:1"))


def test_an_agent_trusts_the_certificate_that_the_command_was_given(tmp_path: Path) -> None:
    certificate, _ = own_certificate(tmp_path)
    model = peer.Model(id="m", max_input_tokens=40_000, max_tokens=1000)
    for url, trusted in (("https://localhost:1", str(certificate)), ("http://localhost:1", None)):
        variables = launch.environment(peer.Peer(url, "", certificate), model)
        assert variables.get("NODE_EXTRA_CA_CERTS") == trusted


def test_ps_has_a_line_for_each_server_in_80_columns() -> None:
    rows = [
        ps.ServerRow(
            url="http://127.0.0.1:18000",
            model="some-organisation/a-model-with-a-long-name-123b-instruct",
            context_tokens=131_072,
            running=128,
            waiting=1000,
            step_rows=1024,
            kv_share=1.0,
            uptime_seconds=400 * 86_400 + 13 * 3600,
        ),
        ps.ServerRow(url="http://127.0.0.1:8000", model="smollm2-135m-instruct"),
    ]
    drawn = io.StringIO()
    Console(width=80, file=drawn).print(ps.table_of(rows))
    head, first, second = drawn.getvalue().splitlines()
    assert head.split() == ["url", "model", "context", "run", "wait", "rows", "KV", "up"]
    for text in ("http://127.0.0.1:18000", "131,072", "128", "1000", "1024", "100%", "400d 13h"):
        assert text in first.split() or text in first
    assert "some-organisation" in first and "…" in first and "0s" in second
    spans = {0: "0s", 59: "59s", 60: "1m 0s", 3700: "1h 1m", 90_000: "1d 1h"}
    assert {seconds: ps.span(seconds) for seconds in spans} == spans


def test_doctor_says_why_a_server_that_is_there_cannot_be_asked(agent_server: Served) -> None:
    asked = peer.Peer(agent_server.url, KEY)
    agent_server.call(lambda: setattr(agent_server.server, "draining", True))
    try:
        diagnosis = doctor.diagnose(settings_of(agent_server.port), asked, must_answer=True)
    finally:
        agent_server.call(lambda: setattr(agent_server.server, "draining", False))
    (server,) = [each for each in diagnosis.findings if each.topic == "server"]
    assert server.verdict == "problem" and "/readyz with status 503" in server.text


def test_a_port_of_another_kind_is_no_server_of_its_own(
    agent_server: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = [agent_server.url, "http://127.0.0.1:1", "http://127.0.0.1:2"]
    monkeypatch.setattr(ps, "local_urls", lambda: urls)
    monkeypatch.setitem(agent_server.server.ports, "https", 1)
    ps.ps(peer.Peer(agent_server.url, KEY), "", as_json=True)
    rows = msgspec.json.decode(capsys.readouterr().out)
    assert [row["url"] for row in rows] == [agent_server.url, "http://127.0.0.1:2"]
    assert rows[0]["model"] == "tiny" and "No server is ready" in rows[1]["problem"]


def test_servers_are_found_by_what_their_edges_listen_on(tmp_path: Path) -> None:
    """A process table: an edge with one listening socket, another program with another."""
    rows = ["head", "0: 0100007F:1F40 0:0 0A 0 0 0 0 0 77", "1: 00000000:1F41 0:0 0A 0 0 0 0 0 78"]
    (tmp_path / "net").mkdir()
    (tmp_path / "net/tcp").write_text("\n".join(rows))
    programs = {"10": (b"python\0-m\0sublimate.edge\0", 77), "11": (b"nginx\0", 78)}
    for name, (command, inode) in programs.items():
        (tmp_path / name / "fd").mkdir(parents=True)
        (tmp_path / name / "cmdline").write_bytes(command)
        (tmp_path / name / "fd/3").symlink_to(f"socket:[{inode}]")
    assert peer.local_urls(tmp_path) == ["http://127.0.0.1:8000"]


@pytest.mark.parametrize("shell", ["sh", "json"])
def test_launch_env_is_read_back_as_it_was_meant(
    agent_server: Served, capsys: pytest.CaptureFixture[str], shell: launch.Shell
) -> None:
    launch.launch_env(peer.Peer(agent_server.url, KEY), shell, any_context=False)
    printed = capsys.readouterr().out
    if shell == "json":
        read = msgspec.json.decode(printed)
    else:
        told = "import os, json; print(json.dumps(dict(os.environ)))"
        script = f'{printed}\n"{sys.executable}" -c "{told}"'
        read = msgspec.json.decode(subprocess.check_output(["sh", "-c", script]))
    assert read["ANTHROPIC_AUTH_TOKEN"] == KEY
    assert read["ANTHROPIC_BASE_URL"] == agent_server.url


def test_other_shells_quote_in_their_way() -> None:
    variables = {"A": "it's \\ $x"}
    assert launch.shown(variables, "fish") == "set -gx A 'it\\'s \\\\ $x'"
    assert launch.shown(variables, "powershell") == "$env:A = 'it''s \\ $x'"


def test_an_agent_gets_its_words_and_environment_and_its_status_is_passed_on(
    agent_server: Served,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    program = tmp_path / "claude"
    program.write_text('#!/bin/sh\necho "$ANTHROPIC_BASE_URL $ANTHROPIC_API_KEY. $@"; exit 7\n')
    program.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "of another server")
    words = ["-p", "two words"]
    asked = peer.Peer(agent_server.url, KEY)
    launched = launch.launch_agent(
        "claude", effective(agent_server), words, asked, None, url="", any_context=False
    )
    assert launched == 7
    said = capfd.readouterr()
    assert said.out == f"{agent_server.url} . -p two words\n"
    assert KEY not in said.out + said.err


def test_an_agent_that_is_not_installed_comes_with_the_command(
    agent_server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    asked = peer.Peer(agent_server.url, KEY)
    with pytest.raises(ConfigError, match="npm install -g @openai/codex"):
        launch.launch_agent(
            "codex", effective(agent_server), [], asked, None, url="", any_context=False
        )


def test_f51_readiness_and_doctor_say_that_a_template_is_replaced() -> None:
    model = tiny_model(chat_template="{{ messages[0].content.translate({}) }}")
    with serve(model=model) as served:
        (warning,) = served.client.get("/readyz").json()["warnings"]
        assert "tiny" in warning and "no method named translate" in warning
        assert peer.Peer(served.url).warnings() == [warning]
        diagnosis = doctor.diagnose(
            settings_of(served.port), peer.Peer(served.url), must_answer=True
        )
        assert [each.text for each in diagnosis.findings if each.topic == "template"] == [warning]
    with serve() as served:
        assert "warnings" not in served.client.get("/readyz").json()
