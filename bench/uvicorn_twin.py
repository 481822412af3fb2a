"""A plain uvicorn application that streams recorded frames: what a usual Python server pays for the
same bytes, with no model, no template and no tokenizer behind it.

usage: python bench/uvicorn_twin.py FRAMES.json [--host 127.0.0.1] [--port 0] [--step-ms 0]
           [--certificate PEM --key PEM]

FRAMES.json: {"first": text, "deltas": [text, ...], "last": text}, server-sent events as a client
got them. An answer of n tokens is `first`, n deltas and `last`, the last delta and `last` in one
message; each message is its own write, as a model's steps would make it. --step-ms: all streams
get a delta each so often, as the steps of a batch would bring them; 0: as fast as it goes.

defines: Twin, main
"""

import argparse
import asyncio
import json
import socket
from typing import Any

import uvicorn

HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


class Twin:
    """The application."""

    def __init__(self, first: bytes, deltas: list[bytes], last: bytes, step_seconds: float) -> None:
        self._first = first
        self._deltas = deltas
        self._last = last
        self._step_seconds = step_seconds
        self._streams = 0
        self._step: asyncio.Future[None] | None = None
        self._clock: asyncio.Task[None] | None = None

    async def _next_step(self) -> None:
        if not self._step_seconds:
            await asyncio.sleep(0)  # a turn of the event loop, so that each delta is a write
            return
        if self._step is None:
            self._step = asyncio.get_running_loop().create_future()
            self._clock = asyncio.create_task(self._tick())
        await self._step

    async def _tick(self) -> None:
        """Steps for as long as somebody waits for one."""
        while self._step is not None:
            await asyncio.sleep(self._step_seconds)
            step, self._step = self._step, None
            if self._streams > 0:
                self._step = asyncio.get_running_loop().create_future()
            step.set_result(None)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        count = min(int(json.loads(body)["max_tokens"]), len(self._deltas))
        self._streams += 1
        try:
            await self._answer(send, count)
        finally:
            self._streams -= 1

    async def _answer(self, send: Any, count: int) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        await send({"type": "http.response.body", "body": self._first, "more_body": True})
        for delta in self._deltas[: count - 1]:
            await self._next_step()
            await send({"type": "http.response.body", "body": delta, "more_body": True})
        await self._next_step()
        end = self._deltas[count - 1] + self._last
        await send({"type": "http.response.body", "body": end, "more_body": False})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("frames")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--certificate", default=None)
    parser.add_argument("--key", default=None)
    parser.add_argument("--step-ms", type=float, default=0.0)
    arguments = parser.parse_args()
    with open(arguments.frames, encoding="utf-8") as file:
        frames = json.load(file)
    deltas = [text.encode() for text in frames["deltas"]]
    step_seconds = arguments.step_ms / 1000
    twin = Twin(frames["first"].encode(), deltas, frames["last"].encode(), step_seconds)
    listening = socket.create_server((arguments.host, arguments.port), backlog=1024)
    port = listening.getsockname()[1]
    settings = uvicorn.Config(
        twin,
        loop="uvloop",
        http="httptools",
        log_level="error",
        access_log=False,
        lifespan="off",
        ssl_certfile=arguments.certificate,
        ssl_keyfile=arguments.key,
    )
    scheme = "https" if arguments.certificate else "http"
    url = f"{scheme}://{arguments.host}:{port}"
    print(json.dumps({"event": "ready", "url": url}), flush=True)
    uvicorn.Server(settings).run(sockets=[listening])


if __name__ == "__main__":
    main()
