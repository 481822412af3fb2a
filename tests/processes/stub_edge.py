"""A stand-in for the edge process: follows the control channel, answers what state it is in.

It keeps a real EdgeClient, so a request to /run goes through the rings to the engine and back.
Control file `STUB_EDGE_FLAGS`: "ignore-drain" never says that it is drained.
"""

import os
import select
import socket
import time

import msgspec

from sublimate import _core
from sublimate.control import channel
from sublimate.control.child import enter_child

ANSWER_SECONDS = 5.0
NO_ENGINE = -1


class StubEdge:
    """One thread, one request at a time."""

    def __init__(self) -> None:
        self.control = enter_child(channel.ToEdge)
        self.listen: socket.socket | None = None
        self.client: _core.EdgeClient | None = None
        self.state: dict[str, object] = {"edge_pid": os.getpid(), "ups": 0, "losses": 0}
        self.state["reloads"] = 0
        self.pair, self.engine = 0, NO_ENGINE
        self.flags = os.environ.get("STUB_EDGE_FLAGS", "")

    def run(self) -> None:
        while True:
            fds = [self.control.fileno()]
            if self.listen is not None:
                fds.append(self.listen.fileno())
            ready, _, _ = select.select(fds, [], [])
            if self.control.fileno() in ready:
                received = self.control.receive()
                if received is None or not self.follow(received.message, received.fds):
                    return
            elif self.listen is not None:
                self.answer()

    def follow(self, message: channel.ToEdge, fds: tuple[int, ...]) -> bool:
        match message:
            case channel.Start():
                self.listen = socket.socket(fileno=fds[0])
                self.listen.setblocking(False)
                self.control.send(channel.EdgeReady(info={"template": "stub"}))
            case channel.EngineUp(edge=pair, engine=engine):
                self.pair, self.engine = pair, engine
                region = _core.Region.attach(*fds[:3])
                for fd in fds:
                    os.close(fd)
                self.client = _core.EdgeClient(region, None)
                self.state["ups"] = int(str(self.state["ups"])) + 1
            case channel.EngineLost(engine=engine) if self.engine not in (engine, NO_ENGINE):
                pass  # the one that a reload has replaced
            case channel.EngineLost(reason=reason):
                self.client = None
                self.state["losses"] = int(str(self.state["losses"])) + 1
                self.state["reason"] = reason
                self.state["lost_at"] = time.monotonic()
            case channel.Health(state=health, fault=fault):
                self.state["health"] = [health, fault]
            case channel.Reload():
                self.state["reloads"] = int(str(self.state["reloads"])) + 1
            case channel.EngineLeaving(engine=engine):
                self.control.send(channel.EngineIdle(engine=engine))
            case channel.Drain():
                if "ignore-drain" not in self.flags:
                    self.control.send(channel.Drained())
            case channel.Stop():
                return False
        return True

    def answer(self) -> None:
        assert self.listen is not None
        try:
            connection, _ = self.listen.accept()
        except BlockingIOError:
            return
        with connection:
            connection.setblocking(True)
            path = connection.recv(1000).split(b" ")[1]
            reply = dict(self.state, engine=self.client is not None)
            if path == b"/run":
                reply["ids"] = self.through_the_rings()
            if path == b"/break":
                self.client = None
                for pair in (self.pair - 1, self.pair):
                    self.control.send(channel.RegionBroken(edge=pair))
            if path == b"/exit":
                os._exit(3)
            connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + msgspec.json.encode(reply))

    def through_the_rings(self) -> list[int]:
        """The scripted answer to a prompt of one token."""
        if self.client is None:
            return []
        acquired = self.client.acquire(_core.REQUEST_HEADER_WORDS + 1)
        assert acquired is not None
        slot, generation, view = acquired
        values = {"prompt_length": 1, "token_budget": 8, "logprobs": -1, "mask_slot": -1}
        values |= {"stop_token_count": 1, "stop_tokens": 2}
        values |= {"top_p_bits": 0x3F800000, "repetition_penalty_bits": 0x3F800000}
        for name, value in values.items():
            view[_core.REQUEST_FIELDS[name][0]] = value
        view[_core.REQUEST_HEADER_WORDS] = 5
        self.client.submit(slot, generation, 1, format="raw")
        ids: list[int] = []
        deadline = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < deadline:
            for event in self.client.poll():
                ids += event.token_ids
                if event.finished:
                    return ids
            time.sleep(0.002)
        return [-1]


if __name__ == "__main__":
    StubEdge().run()
