"""What goes wrong many times is logged as one sentence: refused connections, a data folder that
cannot be used, a data folder of another server."""

import contextlib
import logging
from pathlib import Path

import pytest

from harness import body, read_reply, serve, wait_until
from sublimate.api.batches import runner
from sublimate.config import EdgeSettings
from sublimate.edge.limits import HttpLimits
from sublimate.edge.observe.log import REQUESTS, Repeats
from test_batches import PATH as BATCHES
from test_batches import requests
from test_errors import check_error

CONNECTIONS = 5
REFUSED = 50
FILES = "/v1/files"


def test_f71_refused_connections_are_counted_and_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    written = Repeats(caplog.handler)
    loggers = [logging.getLogger("sublimate.edge"), REQUESTS]
    with (
        caplog.at_level(logging.INFO, "sublimate"),
        serve(limits=HttpLimits(connections_max=CONNECTIONS)) as served,
        contextlib.ExitStack() as stack,
    ):
        for logger in loggers:
            logger.addHandler(written)
            logger.propagate = False
        try:
            socks = [stack.enter_context(served.connect()) for _ in range(CONNECTIONS)]
            metrics = served.server.metrics
            wait_until(lambda: metrics.connections == CONNECTIONS)
            socks = [stack.enter_context(served.connect()) for _ in range(REFUSED)]
            assert {read_reply(sock).status for sock in socks} == {503}
            wait_until(lambda: metrics.responses["503"] == REFUSED)
            assert metrics.connections_refused == REFUSED
        finally:
            for logger in loggers:
                logger.removeHandler(written)
                logger.propagate = True
    lines = [each for each in caplog.records if each.name.startswith("sublimate")]
    assert lines and not [each for each in lines if each.name == REQUESTS.name]
    first, *more = [each.getMessage() for each in lines]
    assert first.startswith("a connection was refused: 5 are open")
    assert all("more like this" in line for line in more)


def test_f71_a_folder_that_cannot_be_written_is_one_sentence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As a read-only home. Root may write everywhere, but not below a file."""
    (tmp_path / "file").touch()
    settings = EdgeSettings(data_dir=str(tmp_path / "file" / "data"))
    with serve(settings=settings) as served:
        upload = {"file": ("a.txt", b"abc" * 100_000)}
        check_error(served.client.post(FILES, files=upload), 503, "This server's data folder")
        check_error(served.client.get(FILES), 503, "This server's data folder")
        check_error(
            served.client.post(BATCHES, json=requests("one")), 503, "This server's data folder"
        )
        assert served.client.post("/v1/messages", json=body()).status_code == 200
    lines = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert len({each.getMessage() for each in lines}) == 2, "one for each folder"
    assert "--data-dir" in lines[0].getMessage()
    assert not any(each.exc_info for each in lines)


def test_f61_a_folder_of_another_server_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0

    def count(folder: Path, wait_seconds: float = 0.0, signature: bytes = b"") -> int:
        nonlocal tries
        tries += 1
        return lock_folder(folder, wait_seconds, signature)

    lock_folder = runner.lock_folder
    settings = EdgeSettings(data_dir=str(tmp_path))
    with serve(settings=settings) as first:
        assert first.client.post(BATCHES, json=requests("one")).status_code == 200
        monkeypatch.setattr(runner, "TAKE_OVER_SECONDS", 0.01)
        monkeypatch.setattr(runner, "lock_folder", count)
        with caplog.at_level(logging.INFO), serve(settings=settings):
            wait_until(lambda: tries > 20)
    [wait] = [each for each in caplog.records if each.getMessage().startswith("batches wait")]
    assert "Give each its own with --data-dir" in wait.getMessage()
