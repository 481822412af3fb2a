"""One quick server for all tests that need nothing special of it, and an eye on every stream."""

import os
from collections.abc import Iterator

import pytest

from harness import Served, serve
from stream_grammar import ask_for_frames, watch_streams


@pytest.fixture(scope="session", autouse=True)
def watched() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if os.environ.get("SUBLIMATE_TEST_WIRE") == "frames":
            ask_for_frames(patch)
        watch_streams(patch)
        yield


@pytest.fixture(scope="session")
def shared() -> Iterator[Served]:
    """Answers at once; a test must leave it idle."""
    with serve(info={"compute_path": "direct-kernel", "resident_loop": True}) as served:
        yield served
        assert served.idle()
        assert served.engine.audit() == ""
