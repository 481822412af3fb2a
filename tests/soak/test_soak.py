"""The soak reads what becomes of a renewal: one that fails, or that nobody hears of, is told."""

import importlib.util
import signal
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).parent


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """It is a script, whose folder its imports come from."""
    monkeypatch.syspath_prepend(str(HERE))
    spec = importlib.util.spec_from_file_location("soak_script", HERE / "soak.py")
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


class Fake:
    """A server that says how its reload went; None: nothing, in time."""

    def __init__(self, failure: str | None) -> None:
        self.failure, self.signals = failure, list[signal.Signals]()

    def signal(self, number: signal.Signals) -> None:
        self.signals.append(number)

    def event(self, name: str, seconds: float) -> dict[str, Any]:
        assert name == "reloaded" and seconds > 0
        if self.failure is None:
            raise AssertionError("no reloaded")
        return {"event": name, "failure": self.failure}


@pytest.mark.parametrize(
    ("failure", "told"), [("", ""), ("The new edge-2 was late.", "edge-2"), (None, "no reloaded")]
)
def test_a_renewal_that_fails_is_found(
    module: ModuleType, tmp_path: Path, failure: str | None, told: str
) -> None:
    soak, server = module.Soak(1.0, tmp_path, 2), Fake(failure)
    soak._renew(server)
    assert server.signals == [signal.SIGUSR2] and soak.renewals == 1
    assert len(soak.findings) == bool(told) and told in "".join(soak.findings)


def test_a_soak_that_measured_nothing_does_not_pass(module: ModuleType, tmp_path: Path) -> None:
    soak = module.Soak(1.0, tmp_path, 2)
    assert "0 samples of engine 1 tell nothing" in soak.report()
    assert len(soak.findings) == 5
