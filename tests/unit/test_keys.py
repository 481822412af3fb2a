"""The keys file: what is written can be read, holds no key, and is refused if it is not valid."""

import errno
import fcntl
import hashlib
import os
import stat
import threading
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from sublimate.cli.main import app
from sublimate.config import keys_path, load_settings
from sublimate.errors import ConfigError
from sublimate.keys import (
    KEY_PREFIX,
    KeyLimits,
    add_key,
    half_written_keys,
    read_keys,
    remove_key,
)

RUNNER = CliRunner()


def test_a_key_is_told_once_and_kept_as_a_hash(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "keys.toml"
    secret = add_key(path, "alice", KeyLimits(requests_per_minute=60, concurrency=2))
    other = add_key(path, "bob-2", KeyLimits())
    assert secret.startswith(KEY_PREFIX) and len(secret) > 50 and secret != other
    keys = read_keys(path)
    assert keys["alice"].sha256 == hashlib.sha256(secret.encode()).hexdigest()
    assert keys["alice"].requests_per_minute == 60 and keys["alice"].concurrency == 2
    assert keys["bob-2"].tokens_per_minute == 0
    assert secret not in path.read_text() and KEY_PREFIX not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    remove_key(path, "alice")
    assert list(read_keys(path)) == ["bob-2"]


@pytest.mark.parametrize("name", ["", "a b", "a.b", "a\n", "é", "x" * 65, '"', "a]"])
def test_names_are_plain(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="1 to 64 letters"):
        add_key(tmp_path / "keys.toml", name, KeyLimits())


def test_a_name_is_given_once(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    add_key(path, "alice", KeyLimits())
    before = path.read_text()
    with pytest.raises(ConfigError, match="already"):
        add_key(path, "alice", KeyLimits())
    with pytest.raises(ConfigError, match="Did you mean 'alice'"):
        remove_key(path, "alicia")
    assert path.read_text() == before


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("keys = 1", "not valid"),
        ("[keys.a]\n", "not valid"),
        ('[keys.a]\nsha256 = "x"\n', "not valid"),
        (f'[keys.a]\nsha256 = "{"0" * 64}"\nconcurrency = -1\n', "not valid"),
        (f'[keys.a]\nsha256 = "{"0" * 64}"\nrequests_per_minut = 1\n', "not valid"),
        (f'[keys."a b"]\nsha256 = "{"0" * 64}"\n', "letters"),
        ("".join(f'[keys.{n}]\nsha256 = "{"0" * 64}"\n' for n in "ab"), "under two names"),
        ("[keys", "cannot be read"),
    ],
)
def test_a_file_that_is_not_valid_is_refused(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=why):
        read_keys(path)


def test_writers_wait_for_each_other(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    threads = [
        threading.Thread(target=add_key, args=(path, f"key{i}", KeyLimits())) for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(read_keys(path)) == [f"key{i}" for i in range(8)]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["keys.lock", "keys.toml"]


def test_the_command_adds_lists_and_removes(tmp_path: Path) -> None:
    path = str(tmp_path / "keys.toml")
    run = ["keys", "add", "alice", "--requests-per-minute", "5", "--keys-file", path, "--json"]
    added = RUNNER.invoke(app, run)
    assert added.exit_code == 0, added.output
    made = msgspec.json.decode(added.stdout)
    assert made["name"] == "alice" and made["key"].startswith(KEY_PREFIX)
    listed = RUNNER.invoke(app, ["keys", "list", "--keys-file", path, "--json"])
    row = msgspec.json.decode(listed.stdout)[0]
    assert row["name"] == "alice" and row["requests_per_minute"] == 5 and row["concurrency"] == 0
    assert "sha256" not in listed.stdout
    shown = RUNNER.invoke(app, ["keys", "list", "--keys-file", path])
    assert "alice" in shown.stdout and shown.exit_code == 0
    assert "requests per minute" in shown.stdout and "concurrency" not in shown.stdout
    again = RUNNER.invoke(app, ["keys", "add", "alice", "--keys-file", path])
    assert again.exit_code == 2
    assert RUNNER.invoke(app, ["keys", "remove", "alice", "--keys-file", path]).exit_code == 0
    assert read_keys(Path(path)) == {}


def test_the_file_is_found_beside_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert keys_path(load_settings({}, environment={}).settings) == tmp_path.joinpath(
        "sublimate", "keys.toml"
    )
    gone = RUNNER.invoke(app, ["serve", "--port", "0", "--keys-file", str(tmp_path / "none")])
    assert gone.exit_code == 2
    assert RUNNER.invoke(app, ["keys", "add", "alice"]).exit_code == 0
    assert list(read_keys(tmp_path / "sublimate" / "keys.toml")) == ["alice"]


def test_copies_of_a_killed_writer_are_found_unless_somebody_writes(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    add_key(path, "alice", KeyLimits())
    copy, other = tmp_path / "keys.tomla1b2c3d4", tmp_path / "keys.toml.bak"
    for file in (copy, other):
        file.write_text("half")
    assert half_written_keys(path, clean=False) == [copy] and copy.exists()
    with path.with_suffix(".lock").open() as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        half_written_keys(path, clean=True)
        assert copy.exists(), "it may be the writer's"
    assert half_written_keys(path, clean=True) == [copy]
    assert not copy.exists() and other.exists() and list(read_keys(path)) == ["alice"]


def test_a_full_disk_is_named_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    path = tmp_path / "keys.toml"
    with pytest.raises(ConfigError, match=r"keys\.toml cannot be written: No space left"):
        add_key(path, "bob", KeyLimits())
    assert not list(tmp_path.glob("keys.toml?*toml*")) and not path.exists()
