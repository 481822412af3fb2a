"""The harness of a whole server: it ends, and says what failed, whatever fails in it."""

import threading

import pytest

from harness import Served, serve


def threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name in ("edge", "loop")]


def test_f64_no_thread_outlives_a_test_that_fails() -> None:
    before = threads()
    with pytest.raises(KeyError, match="the test"), serve() as running:
        assert all(one.daemon for one in threads())
        raise KeyError(f"the test: {running.port}")
    assert threads() == before


def test_f64_no_thread_outlives_a_server_that_does_not_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = threads()
    with pytest.raises(KeyError, match="close"), serve() as running:
        fails_to_close(running, monkeypatch)
    assert threads() == before


def fails_to_close(served: Served, patch: pytest.MonkeyPatch) -> None:
    wait_closed = served.server.wait_closed

    async def failing() -> None:
        await wait_closed()
        raise KeyError("close")

    patch.setattr(served.server, "wait_closed", failing)
