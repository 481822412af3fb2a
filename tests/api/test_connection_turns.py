"""Turns of connections (edge/turns.py): what one sends does not keep the event loop from others."""

import asyncio
import socket

import pytest

from harness import Served
from sublimate.edge.limits import SLICE_BYTES_MIN
from sublimate.edge.turns import Turns

REQUEST = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"
COUNT = 2000


class Busy:
    """Handles one piece a turn."""

    def __init__(self, turns: Turns, name: str, pieces: int, seen: list[str]) -> None:
        self.turns, self.name, self.pieces, self.seen = turns, name, pieces, seen

    def go_on(self, end: float) -> None:
        self.seen.append(self.name)
        self.pieces -= 1
        if self.pieces:
            self.turns.wait(self, again=True)


def test_connections_take_turns_and_the_loop_goes_on_between() -> None:
    async def run() -> list[str]:
        loop = asyncio.get_running_loop()
        turns, seen = Turns(loop, 0.0), list[str]()
        for name in "ab":
            turns.wait(Busy(turns, name, 3, seen))
        for _ in range(3):
            await asyncio.sleep(0)
        turns.wait(Busy(turns, "c", 1, seen))
        for _ in range(4):
            await asyncio.sleep(0)
        return seen

    assert asyncio.run(run()) == list("abacbab")


def test_pipelined_requests_leave_the_loop_to_others(
    shared: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no budget one slice is parsed in each turn of the loop."""
    server = shared.server
    monkeypatch.setattr(server, "turns", Turns(server.loop, 0.0))
    handle, turn, handled = server.handle, [0], dict[int, int]()

    def count(exchange: object) -> None:
        handled[turn[0]] = handled.get(turn[0], 0) + 1
        handle(exchange)  # type: ignore[arg-type]

    def tick() -> None:
        turn[0] += 1
        if turn[0] >= 0:
            server.loop.call_soon(tick)

    monkeypatch.setattr(server, "handle", count)
    server.loop.call_soon_threadsafe(tick)
    try:
        with socket.create_connection(("127.0.0.1", shared.port), timeout=60) as sock:
            sock.sendall(REQUEST * COUNT)
            received = b""
            while received.count(b"HTTP/1.1 2") < COUNT:
                piece = sock.recv(1 << 20)
                assert piece, received[-300:]
                received += piece
    finally:
        turn[0] = -(1 << 60)
    assert max(handled.values()) <= SLICE_BYTES_MIN // len(REQUEST) + 1
