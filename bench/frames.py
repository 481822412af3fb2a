"""What frames save: bytes of real answers as server-sent events and as frames, and what reading
them costs beside the official SDK's own stream parser, in Python and in Node.

usage: python bench/frames.py [--url URL] [--answers FILE] [--rounds 9] [--tokens 200]
                              [--node FOLDER]

Starts one `sublimate serve` with the default model, or asks the one at URL: each prompt twice,
greedily, once per form. Then all answers are read again from memory, a network piece per event, as
a stream that is read as it comes: readers take turns, round by round, in one process per language.
--answers: a file that keeps the answers, so that a later run needs no server. --node: a folder with
node_modules/@anthropic-ai/sdk; clients/typescript is built before (`make build-typescript`).

defines: Answer, PROMPTS, answers, python_readers, timed, kept, node_times, spread, table, main
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import httpx2
import msgspec
from anthropic._streaming import SSEDecoder, Stream
from anthropic.types import RawMessageStreamEvent
from serving import serving

from sublimate.wire.frames import FrameDecoder, encode_frame, encode_sse, event_json

ROOT = Path(__file__).resolve().parents[1]
FRAMES = {"accept": "application/octet-stream"}
TOOLS = [
    {
        "name": "get_weather",
        "description": "The weather of a place now.",
        "input_schema": {
            "type": "object",
            "properties": {"place": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["place", "days"],
        },
    }
]
PROMPTS: list[tuple[str, dict[str, Any]]] = [
    ("Why is the sky blue?", {}),
    ("Write a short story about a lighthouse keeper.", {}),
    ("Explain how a hash table works, with an example in Python.", {}),
    ("List ten facts about the moon.", {}),
    ("Schreibe ein Gedicht über den Herbst.", {}),
    ("How is the weather in Oslo?", {"tools": TOOLS, "tool_choice": {"type": "any"}}),
]
REPEATS = 10
"""Of all answers in one round: milliseconds alone would measure the scheduler."""
Reader = Callable[["Answer"], int]


class Answer(msgspec.Struct):
    """One answer in both forms, and its events as pieces of a network."""

    prompt: str
    sse: bytes
    frames: bytes
    sse_pieces: list[bytes]
    frame_pieces: list[bytes]


def answers(base_url: str, tokens: int) -> Iterator[Answer]:
    """Real answers. What comes as frames is read and written again, so both forms have the same
    events, whatever the two requests' polls were."""
    url = f"{base_url}/v1/messages"
    for prompt, fields in PROMPTS:
        request = {
            "model": "default",
            "max_tokens": tokens,
            "temperature": 0,
            "stream": True,
            "messages": [{"role": "user", "content": prompt}],
            **fields,
        }
        sse = httpx.post(url, json=request, timeout=120).content
        framed = httpx.post(url, json=request, headers=FRAMES, timeout=120)
        events = FrameDecoder().feed(framed.content)
        if framed.headers["content-type"] != FRAMES["accept"] or not sse.startswith(b"event: "):
            raise SystemExit("the server has not sent what was asked for")
        sse_pieces = list(map(encode_sse, events))
        yield Answer(prompt, sse, framed.content, sse_pieces, list(map(encode_frame, events)))


# ---- readers: what each returns is the number of its events --------------------------------------
def python_readers() -> dict[str, Reader]:
    client = anthropic.Anthropic(api_key="none", base_url="http://127.0.0.1:1")

    def sdk(answer: Answer) -> int:
        response = httpx2.Response(
            200, content=iter(answer.sse_pieces), request=httpx2.Request("POST", "http://x/")
        )
        cast: Any = RawMessageStreamEvent
        stream: Stream[Any] = Stream(cast_to=cast, response=response, client=client)
        return sum(1 for _ in stream)

    def sdk_decoder(answer: Answer) -> int:
        return sum(1 for event in SSEDecoder().iter_bytes(iter(answer.sse_pieces)) if event.json())

    def frames(answer: Answer) -> int:
        decoder = FrameDecoder()
        count = sum(len(decoder.feed(piece)) for piece in answer.frame_pieces)
        decoder.close()
        return count

    def frames_json(answer: Answer) -> int:
        decoder = FrameDecoder()
        return sum(
            1 for piece in answer.frame_pieces for event in decoder.feed(piece) if event_json(event)
        )

    return {
        "anthropic: bytes to typed events": sdk,
        "anthropic: its decoder and JSON alone": sdk_decoder,
        "frames: bytes to typed events": frames,
        "frames: bytes to the events' JSON": frames_json,
    }


def timed(readers: dict[str, Reader], told: list[Answer], rounds: int) -> dict[str, list[float]]:
    """Reader -> microseconds an event, per round."""
    times: dict[str, list[float]] = {name: [] for name in readers}
    for _ in range(rounds):
        for name, reader in readers.items():
            begun = time.perf_counter()
            events = sum(sum(map(reader, told)) for _ in range(REPEATS))
            times[name].append((time.perf_counter() - begun) / events * 1e6)
    return times


def kept(arguments: argparse.Namespace) -> list[Answer]:
    file: Path | None = arguments.answers
    if file and file.exists():
        return msgspec.msgpack.decode(file.read_bytes(), type=list[Answer])
    if arguments.url:
        told = list(answers(arguments.url, arguments.tokens))
    else:
        with serving() as port:
            told = list(answers(f"http://127.0.0.1:{port}", arguments.tokens))
    if file:
        file.write_bytes(msgspec.msgpack.encode(told))
    return told


def node_times(folder: Path, told: list[Answer], rounds: int) -> dict[str, list[float]]:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        pieces = [
            {"sse": [piece.decode() for piece in one.sse_pieces],
             "frames": [piece.hex() for piece in one.frame_pieces]}
            for one in told
        ]  # fmt: skip
        json.dump(pieces, file)
        file.flush()
        script = str(ROOT / "bench" / "frames_reader.mjs")
        command = ["node", script, str(folder), file.name, str(rounds), str(REPEATS)]
        done = subprocess.run(command, check=True, capture_output=True)  # noqa: S603
        return msgspec.json.decode(done.stdout, type=dict[str, list[float]])


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):7.2f}  ({min(values):.2f} to {max(values):.2f})"


def table(title: str, times: dict[str, list[float]], of: str, to: tuple[str, ...]) -> None:
    print(f"\n{title}: microseconds an event, median of {len(times[of])} rounds")
    for name, values in times.items():
        print(f"  {name:40} {spread(values)}")
    for name in to:
        ratios = [a / b for a, b in zip(times[of], times[name], strict=True)]
        print(f"  {of} / {name}: {spread(ratios)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="of a server that runs")
    parser.add_argument("--answers", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--node", type=Path, default=ROOT / ".venv" / "clients" / "node")
    arguments = parser.parse_args()
    told = kept(arguments)
    print("bytes of the body: server-sent events, frames, less by")
    for one in told:
        saved = 1 - len(one.frames) / len(one.sse)
        print(f"  {one.prompt[:46]:46} {len(one.sse):8,} {len(one.frames):8,} {saved:6.1%}")
    sse, frames = (sum(len(getattr(one, form)) for one in told) for form in ("sse", "frames"))
    print(f"  {'all':46} {sse:8,} {frames:8,} {1 - frames / sse:6.1%}")
    readers = python_readers()
    timed(readers, told, 1)
    names = list(readers)
    table("Python", timed(readers, told, arguments.rounds), names[0], (names[2], names[3]))
    if (arguments.node / "node_modules").is_dir():
        times = node_times(arguments.node, told, arguments.rounds)
        first, *others = times
        table("Node", times, first, tuple(others))
    else:
        print(f"\nNode: {arguments.node} has no node_modules; see `make test-sdk`")


if __name__ == "__main__":
    main()
