"""One life of an engine process, seen from its supervisor and its edge, which this process plays.

defines: PROMPT, VOCABULARY, Life
"""

import os
import select
import signal
import socket
import time
from array import array

from sublimate import _core
from sublimate.config import EngineSettings
from sublimate.control import channel

PROMPT = list(range(3, 40))
VOCABULARY, ANSWER_TOKENS = 128, 6
TURN_SECONDS, TURNS_MAX = 0.002, 5000
"""What counts as a hang: turns of ours, so that a frozen machine is none."""
SETTLE_TURNS = 100
ONE = 0x3F800000
"""Bits of 1.0f."""


class Life:
    """answer: the right one; empty before it is known, and then learnt, as `descriptors` is (0):
    how many an engine holds at rest."""

    def __init__(
        self, child: int, control: socket.socket, answer: list[int], descriptors: int
    ) -> None:
        self.answer, self.descriptors = answer, descriptors
        self._child = child
        self._channel: channel.Channel[channel.FromEngine] = channel.Channel(
            control, channel.FromEngine
        )
        self._region = _core.Region.create(VOCABULARY)
        self._client = _core.EdgeClient(self._region, None)
        self._turns = 0

    def live(self, settings: EngineSettings, path: str) -> str:
        """What came of it in a few words, with WRONG first if it must not be."""
        try:
            told = self._live(settings, path)
        except TimeoutError:
            told = "WRONG: hang"
        except (OSError, EOFError):
            told = ""  # it has ended; how, says its status
        return self._end(told)

    def _live(self, settings: EngineSettings, path: str) -> str:
        self._channel.send(channel.Load(settings=settings, model_path=path))
        while not isinstance(message := self._receive(), channel.Ready):
            if isinstance(message, channel.Failed):
                return f"refused ({message.reason})" if message.message else "WRONG: no reason"
        self._channel.send(channel.Attach(edge=1), self._region.fds)
        while not isinstance(self._receive(), channel.Attached):
            pass
        ids, reason = self._ask()
        if reason not in ("max_tokens", "end_turn"):
            return f"request failed ({reason})"
        self.answer = self.answer or ids
        if ids != self.answer:
            return f"WRONG: {ids} instead of {self.answer}"
        self._channel.send(channel.Detach(edge=1))
        return self._leave()

    def _leave(self) -> str:
        """Detached, the engine holds the descriptors that it ever does; then it stops when told."""
        for _ in range(SETTLE_TURNS):
            held = len(os.listdir(f"/proc/{self._child}/fd"))
            if 0 < held <= self.descriptors:
                break
            self._take()
        else:
            if self.descriptors:
                return f"WRONG: {held} descriptors are held instead of {self.descriptors}"
        self.descriptors = self.descriptors or held  # some faults leave fewer
        self._channel.send(channel.Stop())
        return "answered"

    def _ask(self) -> tuple[list[int], str]:
        """Ids of the answer to one request, and how it ended."""
        acquired = self._client.acquire(_core.REQUEST_HEADER_WORDS + len(PROMPT))
        assert acquired is not None
        slot, generation, view = acquired
        fields = {"prompt_length": len(PROMPT), "token_budget": ANSWER_TOKENS, "logprobs": -1}
        fields |= {"mask_slot": -1, "top_p_bits": ONE, "repetition_penalty_bits": ONE}
        for name, value in fields.items():
            view[_core.REQUEST_FIELDS[name][0]] = value
        first = _core.REQUEST_HEADER_WORDS
        view[first : first + len(PROMPT)] = memoryview(array("i", PROMPT))
        self._client.submit(slot, generation, 1, format="raw")
        ids: list[int] = []
        while True:
            for event in self._client.poll():
                ids += event.token_ids
                if event.finished:
                    return ids, event.stop_reason
            self._take()

    def _receive(self) -> channel.FromEngine:
        while True:
            if (message := self._take()) is not None:
                return message

    def _take(self) -> channel.FromEngine | None:
        """What the engine says, within a turn. Raises EOFError once it has ended."""
        try:
            received = self._channel.receive()
        except BlockingIOError:
            self._turn()
            return None
        if received is None:
            raise EOFError
        for fd in received.fds:
            os.close(fd)
        return received.message

    def _turn(self) -> None:
        self._turns += 1
        if self._turns > TURNS_MAX:
            raise TimeoutError
        select.select([self._channel.fileno()], [], [], TURN_SECONDS)

    def _end(self, told: str) -> str:
        status = self._reap()
        if status is None:
            return told if told.startswith("WRONG") else f"WRONG: it does not end, after: {told}"
        code = os.waitstatus_to_exitcode(status)
        if told.startswith("WRONG") or (told and code == 0):
            return told
        if code == 0:
            return "WRONG: it ended well before it had answered"
        if code > 0:
            return f"ended (exit code {code})"
        return f"ended ({signal.Signals(-code).name})"

    def _reap(self) -> int | None:
        for _ in range(TURNS_MAX):
            ended, status = os.waitpid(self._child, os.WNOHANG)
            if ended:
                return status
            time.sleep(TURN_SECONDS / 4)
        os.kill(self._child, signal.SIGKILL)
        os.waitpid(self._child, 0)
        return None
