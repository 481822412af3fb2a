"""Waiting for a model whose file is read (edge/loading.py)."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from sublimate.edge import loading
from sublimate.edge.errors import ApiError
from sublimate.edge.loading import Loading
from sublimate.edge.served import NotLoadedError
from sublimate.errors import ModelError


class Model:
    """What Loading needs of a served model."""

    def __init__(self) -> None:
        self.name = "other"
        self.whole = self
        self.where = SimpleNamespace(path="/other.gguf", name="other", tool_format="")
        self.text_if_read: Any = None
        self.text_version = 0
        self.failure: Any = None
        self.rests = self.is_coming = False

    def take_text(self, text: Any) -> None:
        self.text_if_read = text

    def forget_text(self) -> None:
        self.text_if_read = None
        self.text_version += 1


def test_a_file_that_changes_while_it_fails_to_be_read_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model: Any = Model()
    reads: list[str] = []

    def read(path: str, name: str, tool_format: str) -> Any:
        reads.append(path)
        if len(reads) == 1:
            model.forget_text()  # the file was replaced meanwhile
            raise ModelError("half of a file")
        return SimpleNamespace(warm_up=lambda: None)

    monkeypatch.setattr(loading, "load_text_model", read)

    async def run() -> None:
        with ThreadPoolExecutor(1) as executor:
            waiting = Loading(asyncio.get_running_loop(), executor, lambda _: None, 4)
            with waiting.waits(model):
                await waiting.come(NotLoadedError(model, needs_engine=False))

    asyncio.run(run())
    assert len(reads) == 2 and model.text_if_read is not None


def test_requests_that_leave_do_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = Model()
    monkeypatch.setattr(loading.limits, "LOAD_SECONDS_MAX", 0.01)
    model.text_if_read = object()
    model.is_coming = True

    async def run() -> int:
        with ThreadPoolExecutor(1) as executor:
            waiting = Loading(asyncio.get_running_loop(), executor, lambda _: None, 4)
            for _ in range(3):
                with waiting.waits(model), pytest.raises(ApiError):
                    await waiting.come(NotLoadedError(model, needs_engine=True))
            return sum(len(load.sleepers) for load in waiting._loads.values())

    assert asyncio.run(run()) == 0
