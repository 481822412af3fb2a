"""The process between the two hosts of delay.py: carries packets from each tunnel to the other.

usage: python delay_forwarder.py TUNNEL TUNNEL     (descriptors; of the server and of the client)

Standard input: lines of JSON, Conditions, each replacing the one before; its end is the end.
Standard output: READY when it carries, and at the end a Report. A file to be run by its path: it
imports nothing of the package, so that it starts at once.

A direction is a queue: the delay is the same for all its packets, so they are due in the order in
which they came. Waiting is by select, which wakes within the kernel's timer slack (set to 1 µs);
poll and epoll would round to milliseconds.

defines: READY, Conditions, Traffic, Report, Direction, main
"""

import contextlib
import ctypes
import os
import random
import select
import sys
import time
from collections import deque

import msgspec

READY = b"ready\n"
PR_SET_TIMERSLACK = 29
PACKET_BYTES_MAX = 1 << 16
PROTOCOL_UDP = 17
VERSION_4 = 4
AHEAD_OF_OTHERS = -10
"""Nice value: a busy server must not lengthen the wire."""


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """What the wire is like; see DelayNetwork."""

    delay_seconds: float = 0.0
    """In each direction."""
    loss: float = 0.0
    bytes_per_second: float = 0.0
    """0: as fast as it goes."""
    queue_seconds: float = 1.0
    block_udp: bool = False
    seed: int = 1
    """Only that of the first line counts."""

    def __post_init__(self) -> None:
        if self.delay_seconds < 0 or self.bytes_per_second < 0 or self.queue_seconds <= 0:
            raise ValueError("a wire takes no negative time")
        if not 0 <= self.loss < 1:
            raise ValueError("a wire loses a share of its packets, not all")


class Traffic(msgspec.Struct, frozen=True):
    """What passed in one direction."""

    packets: int = 0
    bytes: int = 0
    dropped: int = 0
    """By loss, by a blocked protocol, or because more waited than the queue holds."""


class Report(msgspec.Struct, frozen=True):
    """What passed in all."""

    to_client: Traffic = Traffic()
    to_server: Traffic = Traffic()


class Direction:
    """Packets from one tunnel to the other."""

    def __init__(self, source: int, target: int) -> None:
        self.source = source
        self.packets = 0
        self.bytes = 0
        self.dropped = 0
        self._target = target
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._free_at = 0.0
        """When the last packet so far has left the sender, at the rate of the wire."""

    @property
    def due_at(self) -> float | None:
        return self._waiting[0][0] if self._waiting else None

    def take(self, conditions: Conditions, draw: random.Random) -> None:
        """Everything that the kernel has to send."""
        while True:
            try:
                packet = os.read(self.source, PACKET_BYTES_MAX)
            except BlockingIOError:
                return
            now = time.monotonic()
            leaves_at = now
            if conditions.bytes_per_second:
                backlog_seconds = max(0.0, self._free_at - now)
                leaves_at = now + backlog_seconds + len(packet) / conditions.bytes_per_second
                if backlog_seconds > conditions.queue_seconds:
                    self.dropped += 1
                    continue
                self._free_at = leaves_at
            if draw.random() < conditions.loss or (conditions.block_udp and _is_udp(packet)):
                self.dropped += 1
                continue
            self._waiting.append((leaves_at + conditions.delay_seconds, packet))

    def deliver(self, now: float) -> None:
        """Everything that is due."""
        while self._waiting and self._waiting[0][0] <= now:
            _, packet = self._waiting.popleft()
            try:
                os.write(self._target, packet)
            except OSError:  # its queue is full: as a real one, it loses the packet
                self.dropped += 1
                continue
            self.packets += 1
            self.bytes += len(packet)

    def traffic(self) -> Traffic:
        return Traffic(self.packets, self.bytes, self.dropped)


def _is_udp(packet: bytes) -> bool:
    if packet[0] >> 4 == VERSION_4:
        return packet[9] == PROTOCOL_UDP
    return packet[6] == PROTOCOL_UDP


def _carry(directions: list[Direction]) -> None:
    conditions = msgspec.json.decode(sys.stdin.buffer.readline(), type=Conditions)
    draw = random.Random(conditions.seed)  # noqa: S311 - it loses packets
    os.write(sys.stdout.fileno(), READY)
    said = b""
    sources = {direction.source: direction for direction in directions}
    commands = sys.stdin.fileno()
    while True:
        due = [direction.due_at for direction in directions if direction.due_at is not None]
        wait = max(0.0, min(due) - time.monotonic()) if due else None
        readable, _, _ = select.select([commands, *sources], [], [], wait)
        if commands in readable:
            more = os.read(commands, PACKET_BYTES_MAX)
            if not more:
                return
            *lines, said = (said + more).split(b"\n")
            for line in lines:
                conditions = msgspec.json.decode(line, type=Conditions)
        for source in readable:
            if source in sources:
                sources[source].take(conditions, draw)
        now = time.monotonic()
        for direction in directions:
            direction.deliver(now)


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    with contextlib.suppress(OSError):  # a right that user namespaces do not give
        os.setpriority(os.PRIO_PROCESS, 0, AHEAD_OF_OTHERS)
    server, client = (int(argument) for argument in sys.argv[1:])
    to_client, to_server = Direction(server, client), Direction(client, server)
    with contextlib.suppress(KeyboardInterrupt):
        _carry([to_client, to_server])
    report = Report(to_client.traffic(), to_server.traffic())
    os.write(sys.stdout.fileno(), msgspec.json.encode(report))


if __name__ == "__main__":
    main()
