"""One quick server for all tests that need nothing special of it, and an eye on every stream."""

import os
from collections.abc import Iterator
from importlib import import_module

import anthropic
import pytest

from harness import CARRIER, Served, serve
from stream_grammar import ask_for_frames, watch_streams
from sublimate.client.injected import PATCHED as BASE
from sublimate.client.injected import WRAPPERS
from sublimate.client.injected import patch as patch_sdk


@pytest.fixture(scope="module", autouse=True)
def watched() -> Iterator[None]:
    """Not for the session: other folders' tests let servers say what no grammar allows."""
    with pytest.MonkeyPatch.context() as patch:
        if os.environ.get("SUBLIMATE_TEST_WIRE") == "frames":
            ask_for_frames(patch)
        watch_streams(patch)
        if CARRIER:
            patch.setenv("SUBLIMATE_CARRIERS", CARRIER)
            for name in WRAPPERS:
                patch.setattr(f"{BASE}.{name}", getattr(import_module(BASE), name))
            patch_sdk(import_module(BASE))
        yield


@pytest.fixture(scope="session")
def shared() -> Iterator[Served]:
    """Answers at once; a test must leave it idle."""
    with serve(info={"compute_path": "direct-kernel", "resident_loop": True}) as served:
        yield served
        assert served.idle()
        assert served.engine.audit() == ""


@pytest.fixture
def client(served: Served) -> Iterator[anthropic.Anthropic]:
    """The official one, closed behind the test: what is only forgotten is found by a later test."""
    with anthropic.Anthropic(base_url=served.url, api_key="none", max_retries=0) as made:
        yield made
