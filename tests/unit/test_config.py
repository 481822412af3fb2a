"""Settings: order of the sources, what a wrong one says, sizes."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sublimate import config
from sublimate.config import FIELDS, load_settings, parse_size
from sublimate.errors import ConfigError


@pytest.fixture(autouse=True)
def no_user_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(text)
    return path


def test_later_sources_win(tmp_path: Path) -> None:
    path = write(
        tmp_path, 'port = 1\nhost = "a"\n[engine]\nthreads = 3\n[log]\nlog_level = "debug"'
    )
    environment = {"SUBLIMATE_PORT": "2", "SUBLIMATE_THREADS": "4"}
    effective = load_settings({"port": 5, "threads": None}, config=path, environment=environment)
    settings = effective.settings
    assert (settings.server.port, settings.server.host) == (5, "a")
    assert (settings.engine.threads, settings.log.log_level) == (4, "debug")
    assert effective.origins["port"] == "flag --port"
    assert effective.origins["threads"] == "environment SUBLIMATE_THREADS"
    assert effective.origins["host"] == f"file {path}"
    assert effective.origins["model"] == "default"


def test_the_users_own_file_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "sublimate").mkdir()
    (tmp_path / "sublimate" / "config.toml").write_text("queue_max = 7")
    assert load_settings({}, environment={}).settings.edge.queue_max == 7


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load_settings({}, config=tmp_path / "absent.toml", environment={})
    with pytest.raises(ConfigError, match="does not exist"):
        load_settings({}, environment={"SUBLIMATE_CONFIG": str(tmp_path / "absent.toml")})


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("SUBLIMATE_PORT", "70000", "port = '70000' (environment SUBLIMATE_PORT)"),
        ("SUBLIMATE_PORT", "http", "expected int"),
        ("SUBLIMATE_EXACT", "perhaps", "expected true or false"),
        ("SUBLIMATE_KV_MEMORY", "2Q", "expected a size"),
        ("SUBLIMATE_PROFILE", "low-latnecy", "Did you mean 'low-latency'?"),
        ("EXECUTION_PROFILE", "fast", "(environment EXECUTION_PROFILE)"),
        ("SUBLIMATE_ROPE_FACTOR", "nan", "rope_factor"),
        ("SUBLIMATE_ROPE_FACTOR", "inf", "rope_factor"),
        ("SUBLIMATE_DRAIN_SECONDS", "-1", "drain_seconds"),
        ("SUBLIMATE_ISA", "avx1024", "expected one of"),
        ("SUBLIMATE_QUEUE_MAX", "0", "queue_max"),
        ("SUBLIMATE_THREADS", "65", "threads"),
        ("SUBLIMATE_WATCHDOG_SECONDS", "-1", "watchdog_seconds"),
        ("SUBLIMATE_DATA_DIR", os.fsdecode(b"/x\xff"), "it is not UTF-8"),
        ("SUBLIMATE_ALIASES", os.fsdecode(b"a=b,x\xff=default"), "it is not UTF-8"),
    ],
)
def test_a_wrong_value_names_field_and_source(variable: str, value: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings({}, environment={variable: value})
    assert said in str(caught.value)


def test_a_wrong_value_of_a_secret_is_not_shown(tmp_path: Path) -> None:
    path = write(tmp_path, "api_keys = [12345678]")
    with pytest.raises(ConfigError) as caught:
        load_settings({}, config=path, environment={})
    assert "12345678" not in str(caught.value) and "api_keys" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prot = 1", "Did you mean 'port'?"),
        ("[engine]\nthread = 1", "Did you mean 'threads'?"),
        ("port = = 1", "cannot be read"),
        ('port = "x"', "expected int"),
        ("[server]\nport = [1]", "port"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=r"config\.toml") as caught:
        load_settings({}, config=write(tmp_path, text), environment={})
    assert said in str(caught.value)


def test_a_mistyped_variable_is_noted_and_a_service_link_is_not_a_port() -> None:
    environment = {
        "SUBLIMATE_THREDS": "1",
        "SUBLIMATE_PORT": "tcp://10.0.0.1:80",
        "SUBLIMATE_SERVICE_HOST": "10.0.0.1",
    }
    effective = load_settings({}, environment=environment)
    assert effective.settings.server.port == config.DEFAULT_PORT
    assert len(effective.notes) == 2
    assert "Did you mean 'threads'?" in " ".join(effective.notes)


def test_pinned_profile_comes_from_its_own_variable() -> None:
    effective = load_settings({}, environment={"EXECUTION_PROFILE": "long-context"})
    assert effective.settings.edge.execution_profile == "long-context"


def test_keys_come_from_list_and_file(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# people\n  second \n\nthird\n")
    environment = {"SUBLIMATE_API_KEYS": "first, ", "SUBLIMATE_API_KEY_FILE": str(keys)}
    assert load_settings({}, environment=environment).settings.edge.api_keys == (
        "first",
        "second",
        "third",
    )
    keys.write_text("\n# none\n")
    with pytest.raises(ConfigError, match="holds no key"):
        load_settings({}, environment=environment)
    environment["SUBLIMATE_API_KEY_FILE"] = str(tmp_path / "absent")
    with pytest.raises(ConfigError, match="api_key_file"):
        load_settings({}, environment=environment)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("0", 0), ("512", 512), ("2k", 2048), ("1.5 GiB", 3 << 29), ("3GB", 3 << 30), ("1T", 1 << 40)],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "-1", "1X", "G", "1 2", "1e3", "\u0661"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="expected a size"):
        parse_size(text)


def test_every_default_is_valid_and_every_field_tells_its_names() -> None:
    assert load_settings({}, environment={}).settings == config.Settings()
    for field in FIELDS.values():
        assert field.help.endswith("."), field.name
        assert field.environment == "SUBLIMATE_" + field.name.upper()
        assert field.flag == "--" + field.name.replace("_", "-")


def test_settings_survive_the_control_channel() -> None:
    settings = config.Settings()
    assert msgspec.json.decode(msgspec.json.encode(settings), type=config.Settings) == settings


def test_bounds_equal_those_of_the_core() -> None:
    from sublimate import _core as core

    assert core.LIMITS["CONTEXT_TOKENS_MAX"] == config.CONTEXT_TOKENS_MAX
    assert core.LIMITS["QUEUE_MAX"] == config.QUEUE_MAX
    assert core.LIMITS["COMPUTE_THREADS_MAX"] == config.THREADS_MAX


@pytest.mark.parametrize(
    ("flags", "environment", "text"),
    [
        ({"api_keys": [""]}, {}, ""),
        ({"api_keys": ["real", " "]}, {}, ""),
        ({}, {"SUBLIMATE_API_KEYS": ""}, ""),
        ({}, {"SUBLIMATE_API_KEYS": " , "}, ""),
        ({}, {}, 'api_keys = [""]'),
        ({}, {}, 'api_keys = ["", "real"]'),
    ],
)
def test_an_empty_key_opens_no_server(
    tmp_path: Path, flags: dict[str, Any], environment: dict[str, str], text: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match="a key is empty"):
        load_settings(flags, environment=environment, config=path)


def test_an_empty_list_of_keys_is_no_key(tmp_path: Path) -> None:
    path = write(tmp_path, "api_keys = []")
    assert load_settings({}, config=path, environment={}).settings.edge.api_keys == ()
