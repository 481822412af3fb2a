"""The supervisor's own door: who is let in, and what is answered."""

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from harness import wait_until
from sublimate.control import door
from sublimate.control.door import AskModels, Door, ModelRow, Question, StopModel, Told, knock
from sublimate.errors import PeerError

ROW = ModelRow(name="a", state="here", memory_bytes=3, requests=1, idle_seconds=None, main=True)


class Opened:
    """A door with somebody behind it."""

    def __init__(self) -> None:
        self.door = Door()
        self.asked: list[Question] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _answer(self, question: Question) -> Told:
        self.asked.append(question)
        return Told(models=(ROW,), error="" if isinstance(question, AskModels) else "no")

    def _serve(self) -> None:
        while not self._ended.wait(0.002):
            self.door.serve(self._answer)

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self.door.close()


@pytest.fixture
def opened() -> Iterator[Opened]:
    made = Opened()
    yield made
    made.close()


def test_a_question_is_answered(opened: Opened) -> None:
    assert knock(os.getpid(), AskModels()) == Told(models=(ROW,))
    assert knock(os.getpid(), StopModel("a")).error == "no"
    assert opened.asked == [AskModels(), StopModel("a")]
    wait_until(lambda: len(opened.door.fds()) == 1)  # nobody stays


def test_what_is_no_question_is_not_answered(opened: Opened) -> None:
    for data in (b"{}", b"not json", b'{"op":"delete"}'):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.connect(f"\0sublimate-{os.getpid()}")
            sock.settimeout(5)
            sock.send(data)
            assert sock.recv(100) == b""
    assert opened.asked == []


def test_who_says_nothing_does_not_stay(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "VISIT_SECONDS", 0.05)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(f"\0sublimate-{os.getpid()}")
        sock.settimeout(5)
        assert sock.recv(100) == b""
    assert knock(os.getpid(), AskModels()).models == (ROW,)


def test_another_user_is_not_let_in(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "_credentials", lambda sock: (os.getpid(), os.geteuid() + 1))
    with pytest.raises(PeerError):
        knock(os.getpid(), AskModels())
    assert opened.asked == []


def test_a_door_that_another_process_holds_is_not_asked() -> None:
    """As somebody who waits where a server is to come."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as squatter:
        squatter.bind("\0sublimate-1")
        squatter.listen()
        with pytest.raises(PeerError, match="no server of this user"):
            knock(1, AskModels())


def test_where_nobody_is_nobody_answers() -> None:
    with pytest.raises(PeerError, match="does not answer"):
        knock(os.getpid(), AskModels())


def test_a_second_door_of_the_same_process_lets_nobody_in(opened: Opened) -> None:
    second = Door()
    second.serve(lambda question: Told())
    assert second.fds() == [] and second.due_seconds is None
    second.close()
