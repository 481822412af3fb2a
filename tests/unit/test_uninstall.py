"""`sublimate uninstall`: what it deletes, what it leaves, and what it asks."""

from pathlib import Path

import pytest

from sublimate.cli import reload
from sublimate.cli.uninstall import uninstall
from sublimate.config import Effective, load_settings
from sublimate.errors import ConfigError
from test_cli import run


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("cache", "data", "config"):
        folder = tmp_path / name / "sublimate"
        folder.mkdir(parents=True)
        (folder / "kept").write_bytes(b"x" * 2048)
        (tmp_path / name / "other").mkdir()
        monkeypatch.setenv(f"XDG_{name.upper()}_HOME", str(tmp_path / name))
    return tmp_path


def left(home: Path) -> list[str]:
    return sorted(str(path.relative_to(home)) for path in home.glob("*/*"))


EVERYTHING = sorted(f"{a}/{b}" for a in ("cache", "data", "config") for b in ("other", "sublimate"))


def test_f69_uninstall_deletes_its_own_folders_alone(home: Path) -> None:
    elsewhere = home / "models"
    elsewhere.mkdir()
    (home / "config/sublimate/config.toml").write_text(f'[server]\ncache_dir = "{elsewhere}"\n')
    shown = run("uninstall", "--yes").stdout
    assert left(home) == ["cache/other", "config/other", "data/other"]
    assert elsewhere.is_dir() and f"{elsewhere}  stays" in shown
    assert "Nothing to delete" in run("uninstall", "--yes").stdout


def test_f69_a_dry_run_shows_and_deletes_nothing(home: Path) -> None:
    shown = run("uninstall", "--dry-run").stdout
    assert left(home) == EVERYTHING
    assert all(str(home / name / "sublimate") in shown for name in ("cache", "data", "config"))


@pytest.mark.parametrize(
    ("running", "told"),
    [([1234], "A server runs .process 1234."), ([12, 34], "Servers run .processes 12, 34.")],
)
def test_f69_beside_a_server_only_a_dry_run_is_possible(
    home: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    running: list[int],
    told: str,
) -> None:
    def servers(_: Effective) -> list[int]:
        return running

    monkeypatch.setattr(reload, "running_servers", servers)
    effective = load_settings({})
    assert uninstall(effective, is_dry_run=True, is_sure=False) == 0
    assert str(home / "data/sublimate") in capsys.readouterr().out
    with pytest.raises(ConfigError, match=told):
        uninstall(effective, is_dry_run=False, is_sure=True)
    assert left(home) == EVERYTHING


def test_uninstall_deletes_nothing_unasked(home: Path) -> None:
    assert "--yes" in run("uninstall", code=2).stderr
    assert left(home) == EVERYTHING


def test_uninstall_does_not_follow_a_link(home: Path) -> None:
    target = home / "elsewhere"
    (home / "data/sublimate").rename(target)
    (home / "data/sublimate").symlink_to(target)
    run("uninstall", "--yes")
    assert (target / "kept").is_file() and not (home / "data/sublimate").exists()
