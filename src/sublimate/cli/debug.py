"""`sublimate debug`: follow what happens to requests, show one afterwards, or make one and show
both sides of it.

defines: CALL, Stream, Watch, follow, show, call
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from ..bench.apis import headers
from ..errors import ExitCode, PeerError
from .debug_text import Filter, is_shown, live_line, matches, show_story
from .output import error_text, note, out
from .peer import OK_STATUS, Peer
from .perfetto import Recorder

CALL = "messages.create"
"""Asks for a call instead of an id."""
READ_SECONDS = 30.0
"""The server says something every second."""
CALL_SECONDS = 600.0
SETTLE_SECONDS = 3.0
"""How long the story of an answer may take to end after its last byte."""
LOOK_SECONDS = 0.02


# ---- follow --------------------------------------------------------------------------------------
class Stream:
    """The events of a server; use it in a with block. Raises PeerError."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._connection = peer.connection(READ_SECONDS)
        try:
            self._connection.request("GET", "/v1/debug/events", headers=headers(peer.key))
            self._response = self._connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise peer.failure(error) from error
        if self._response.status != OK_STATUS:
            said = error_text(self._response.read())
            self._connection.close()
            raise PeerError(f"{peer.url} does not tell what it does: {said}")

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()

    def events(self) -> Iterator[tuple[str, Any]]:
        """Name and data of each, and ("", None) for a sign of life. Raises PeerError when the
        server has gone."""
        name = ""
        try:
            while line := self._response.readline():
                if line.startswith(b"event: "):
                    name = line[len(b"event: ") :].strip().decode()
                elif line.startswith(b"data: "):
                    yield name, msgspec.json.decode(line[len(b"data: ") :])
                elif line.startswith(b":"):
                    yield "", None
        except (OSError, http.client.HTTPException, msgspec.DecodeError) as error:
            raise PeerError(f"{self._peer.url} has stopped telling what it does.") from error


class Watch:
    """What one run of `debug` has heard."""

    def __init__(self, chosen: Filter, *, as_json: bool, recorder: Recorder | None) -> None:
        self._chosen = chosen
        self._as_json = as_json
        self._recorder = recorder
        self._offset_ns = 0
        self._hidden: set[str] = set()
        """Requests that were not asked for."""

    def heard(self, name: str, data: Any) -> None:
        """One event of the stream."""
        if not name:
            return
        if self._as_json:
            line = msgspec.json.encode({"event": name, "data": data}).decode()
            out.print(line, soft_wrap=True, markup=False)
        if name == "server":
            self._offset_ns = time.time_ns() - data["clock_ns"]
        elif name == "loop":
            for event in data:
                self._loop(event)
        elif name == "request":
            self._request(data)
        elif name == "story":
            self._story(data)
        elif name == "missed" and not self._as_json:
            note(f"{data['records']:,} records of the loop came too fast to be read.")

    def _say(self, ns: int, request_id: str, side: str, text: str) -> None:
        if not self._as_json:
            out.print(live_line(ns, self._offset_ns, request_id, side, text), soft_wrap=True)

    def _loop(self, event: dict[str, Any]) -> None:
        if self._recorder is not None:
            self._recorder.told(event["id"], event)
        if event["id"] in self._hidden or self._chosen.waits_for_ends:
            return
        if is_shown(event, self._chosen):
            self._say(event["ns"], event["id"], "loop", event["text"])

    def _request(self, story: dict[str, Any]) -> None:
        if not matches(story, self._chosen):
            self._hidden.add(story["id"])
            return
        for line in story["lines"]:
            self._say(line["ns"], story["id"], line["side"], line["text"])

    def _story(self, story: dict[str, Any]) -> None:
        self._hidden.discard(story["id"])
        if self._recorder is not None:
            self._recorder.story(story)
        if not matches(story, self._chosen):
            return
        seen = story["answer"]["prompt_tokens"] > 0 and not self._chosen.waits_for_ends
        lines = story["lines"]
        published = [at for at, line in enumerate(lines) if line["text"].startswith("publish:")]
        for line in lines[published[0] + 1 if seen and published else 0 :]:
            self._say(line["ns"], story["id"], line["side"], line["text"])


def follow(
    peer: Peer, chosen: Filter, *, as_json: bool, perfetto: Path | None, seconds: float
) -> ExitCode:
    """Until it is interrupted, or for so many seconds (0: no end)."""
    recorder = Recorder() if perfetto is not None else None
    watch = Watch(chosen, as_json=as_json, recorder=recorder)
    until = time.monotonic() + seconds if seconds else None
    try:
        with Stream(peer) as stream:
            if not as_json:
                note(f"Following {peer.url}. Ctrl-C ends it.")
            for name, data in stream.events():
                watch.heard(name, data)
                if until is not None and time.monotonic() >= until:
                    break
    except KeyboardInterrupt:
        if perfetto is None:
            raise
    _save(perfetto, recorder)
    return ExitCode.OK


def _save(path: Path | None, recorder: Recorder | None) -> None:
    if path is None or recorder is None:
        return
    try:
        path.write_bytes(recorder.encoded())
    except OSError as error:
        raise PeerError(f"{path} cannot be written: {error.strerror}.") from error
    note(f"Wrote {path}: open it at https://ui.perfetto.dev")


# ---- one request ---------------------------------------------------------------------------------
def show(peer: Peer, request_id: str, *, as_json: bool, perfetto: Path | None) -> ExitCode:
    """A request that the server still knows. Raises PeerError."""
    story = peer.json(f"/v1/debug/requests/{request_id}")
    if as_json:
        out.print_json(msgspec.json.encode(story).decode())
    else:
        show_story(out, story)
    _save_story(story, perfetto)
    return ExitCode.OK


def _save_story(story: dict[str, Any], perfetto: Path | None) -> None:
    recorder = Recorder()
    recorder.story(story)
    _save(perfetto, recorder)


# ---- a call of its own ---------------------------------------------------------------------------
def call(
    peer: Peer,
    body: dict[str, Any],
    *,
    verbose: bool,
    as_json: bool,
    perfetto: Path | None,
) -> ExitCode:
    """POST /v1/messages, streamed, and what both sides did. Raises PeerError."""
    with Stream(peer) as stream:
        next(stream.events())  # the loop traces from now on
        offset_ns = _clock_offset(peer)
        moments, request_id, text = _ask(peer, body)
        story = _ended(peer, request_id)
    client = [(ns + offset_ns, said) for ns, said in moments]
    if as_json:
        sides = {"client": [{"ns": ns, "text": said} for ns, said in client], "server": story}
        out.print_json(msgspec.json.encode(sides).decode())
    else:
        if not verbose:
            client = [client[0], client[-1]]
        out.print(text, markup=False, soft_wrap=True)
        show_story(out, story, client)
    _save_story(story, perfetto)
    return ExitCode.OK if story["answer"]["status"] == OK_STATUS else ExitCode.PEER


def _clock_offset(peer: Peer) -> int:
    """From this process's monotonic clock to the server's; 0 on one machine, where they are one."""
    before = time.monotonic_ns()
    there = int(peer.json("/v1/debug/requests")["clock_ns"])
    after = time.monotonic_ns()
    return 0 if before <= there <= after else there - (before + after) // 2


def _ask(peer: Peer, body: dict[str, Any]) -> tuple[list[tuple[int, str]], str, str]:
    """What happened when, the request's id, and the answer's text or error."""
    moments: list[tuple[int, str]] = []

    def moment(text: str) -> None:
        moments.append((time.monotonic_ns(), text))

    connection = peer.connection(CALL_SECONDS)
    data = msgspec.json.encode(body)
    try:
        moment("connects")
        connection.connect()
        moment(f"connected; sends {len(data):,} bytes")
        connection.request("POST", "/v1/messages", data, headers(peer.key, peer.profile))
        moment("sent")
        response = connection.getresponse()
        moment(f"head of the answer: status {response.status}")
        pieces: list[str] = []
        count = size = 0
        raw = b""
        while line := response.readline():
            size += len(line)
            raw += line if response.status != OK_STATUS else b""
            if not line.startswith(b"data: "):
                continue
            count += 1
            event: dict[str, Any] = msgspec.json.decode(line[len(b"data: ") :])
            if event["type"] == "content_block_delta":
                if not pieces:
                    moment("first text")
                pieces.append(str(event["delta"].get("text", "")))
        moment(f"last byte: {count:,} events, {size:,} bytes")
    except (OSError, http.client.HTTPException) as error:
        raise PeerError(f"{peer.url} has cut the call: {error}") from error
    finally:
        connection.close()
    request_id = response.getheader("request-id")
    if request_id is None:
        raise PeerError(f"{peer.url} names no request-id, so it is none of Sublimate's.")
    return moments, request_id, "".join(pieces) or (error_text(raw) if raw else "")


def _ended(peer: Peer, request_id: str) -> dict[str, Any]:
    """The story of a request whose answer is there."""
    until = time.monotonic() + SETTLE_SECONDS
    while True:
        story: dict[str, Any] = peer.json(f"/v1/debug/requests/{request_id}")
        if story["state"] == "ended" or time.monotonic() > until:
            return story
        time.sleep(LOOK_SECONDS)
