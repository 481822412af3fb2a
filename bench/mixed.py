"""Long prompts beside running streams, against a `sublimate serve` that this starts itself.

usage: python bench/mixed.py [--rounds 5] [--streams 16] [--prompts 3] [--outstanding 1] [--json]

Each round: some streams decode (quiet); then prompts of about 2,000 tokens, all different, arrive
back to back while they go on; then they are alone again (quiet); at last the same prompts without
streams. Reported are the gaps between the tokens of a stream, quiet and loaded, and how much of its
solo rate prefill keeps. One thread that polls raw sockets and counts events, so that on a machine
of two cores the load does not take them from the server; its share of a core is reported too.

defines: Connection, Client, Round, measure, main
"""

from __future__ import annotations

import argparse
import json
import random
import select
import socket
import statistics
import time
from dataclasses import asdict, dataclass
from itertools import pairwise

from serving import WORDS, serving

from sublimate.bench.figures import percentile

DELTA = b'"content_block_delta"'
END = b'"message_stop"'
INPUT_TOKENS = b'"input_tokens":'
STREAM_WORDS = 100
STREAM_TOKENS = 6000
PROMPT_WORDS = 1960
# A token without text of its own has no event, and the gap around it would be that of two steps: so
# no control tokens (their ids are the default model's), and no unlikely ones, among which are pieces
# of characters.
PLAIN_TEXT = {
    "temperature": 0.8,
    "top_k": 40,
    "ignore_eos": True,
    "logit_bias": {str(token): -100 for token in range(17)},
}
QUIET_SECONDS = 2.5
SETTLE_SECONDS = 0.5
WARM_SECONDS = 10
RECEIVE_BYTES = 1 << 16


class Connection:
    """One streamed request: when its events arrived."""

    def __init__(self, port: int, words: int, tokens: int, profile: str) -> None:
        text = f"{random.randrange(10**9)} " + " ".join(random.choices(WORDS, k=words))
        body: dict[str, object] = {
            "model": "default",
            "max_tokens": tokens,
            "stream": True,
            **PLAIN_TEXT,
            "messages": [{"role": "user", "content": text}],
        }
        if profile:
            body["execution_profile"] = profile
        data = json.dumps(body).encode()
        head = "POST /v1/messages HTTP/1.1\r\nhost: localhost\r\n"
        head += f"content-length: {len(data)}\r\n\r\n"
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.arrivals: list[float] = []
        self.ended = 0.0
        self.input_tokens = 0
        self._tail = b""
        self.began = time.perf_counter()
        self.socket.sendall(head.encode() + data)

    def receive(self) -> None:
        """Takes what has arrived. Raises SystemExit when the server gave up."""
        data = self.socket.recv(RECEIVE_BYTES)
        now = time.perf_counter()
        if not data:
            raise SystemExit("the server closed a stream")
        seen = self._tail + data
        if not self.input_tokens and INPUT_TOKENS in seen:
            digits = seen.split(INPUT_TOKENS, 1)[1].split(b",", 1)[0]
            self.input_tokens = int(digits)
        if DELTA in seen:
            self.arrivals.append(now)
        if END in seen:
            self.ended = now
        # A word cut in two is found with the next piece; one found here is not found again.
        self._tail = b"" if DELTA in seen else seen[-len(INPUT_TOKENS) - len(DELTA) :]

    def gaps_ms(self, begin: float, end: float) -> list[float]:
        times = [at for at in self.arrivals if begin <= at <= end]
        return [(b - a) * 1e3 for a, b in pairwise(times)]


class Client:
    """Polls all connections of a round on one thread."""

    def __init__(self, port: int, profile: str) -> None:
        self._port = port
        self._profile = profile
        self._poll = select.poll()
        self._open: dict[int, Connection] = {}

    def start(self, words: int, tokens: int) -> Connection:
        one = Connection(self._port, words, tokens, self._profile)
        self._open[one.socket.fileno()] = one
        self._poll.register(one.socket, select.POLLIN)
        return one

    def close(self, one: Connection) -> None:
        self._poll.unregister(one.socket)
        del self._open[one.socket.fileno()]
        one.socket.close()

    def step(self, seconds: float) -> None:
        for descriptor, _event in self._poll.poll(seconds * 1e3):
            self._open[descriptor].receive()

    def run_for(self, seconds: float) -> tuple[float, float]:
        begin = time.perf_counter()
        while (left := begin + seconds - time.perf_counter()) > 0:
            self.step(left)
        return begin, time.perf_counter()

    def run_prompts(self, count: int, outstanding: int) -> tuple[float, float, int]:
        """So many long prompts, a few at a time: begin, end, tokens of all."""
        begin = time.perf_counter()
        active: list[Connection] = []
        tokens = 0
        while active or count:
            while count and len(active) < outstanding:
                active.append(self.start(PROMPT_WORDS, 1))
                count -= 1
            self.step(1.0)
            for one in [each for each in active if each.ended]:
                tokens += one.input_tokens
                active.remove(one)
                self.close(one)
        return begin, time.perf_counter(), tokens


@dataclass
class Round:
    """Figures of one round; gaps in milliseconds, rates in prompt tokens per second."""

    quiet_median_ms: float
    quiet_p99_ms: float
    loaded_median_ms: float
    loaded_p99_ms: float
    loaded_max_ms: float
    p99_ratio: float
    solo_rate: float
    loaded_rate: float
    rate_ratio: float
    client_core_share: float


def measure(port: int, streams: int, prompts: int, outstanding: int, profile: str) -> Round:
    client = Client(port, profile)
    running = [client.start(STREAM_WORDS, STREAM_TOKENS) for _ in range(streams)]
    while not all(one.arrivals for one in running):
        client.step(1.0)
    client.run_for(SETTLE_SECONDS)
    used = time.process_time()
    begun = time.perf_counter()
    before = client.run_for(QUIET_SECONDS)
    begin, end, tokens = client.run_prompts(prompts, outstanding)
    after = client.run_for(QUIET_SECONDS)
    used = (time.process_time() - used) / (time.perf_counter() - begun)
    for one in running:
        client.close(one)
    client.run_for(SETTLE_SECONDS)
    quiet = [gap for one in running for span in (before, after) for gap in one.gaps_ms(*span)]
    loaded = [gap for one in running for gap in one.gaps_ms(begin, end)]
    solo_begin, solo_end, solo_tokens = client.run_prompts(prompts, outstanding)
    loaded_rate = tokens / (end - begin)
    solo_rate = solo_tokens / (solo_end - solo_begin)
    median = statistics.median(quiet)
    return Round(
        quiet_median_ms=median,
        quiet_p99_ms=percentile(quiet, 0.99),
        loaded_median_ms=statistics.median(loaded),
        loaded_p99_ms=percentile(loaded, 0.99),
        loaded_max_ms=max(loaded),
        p99_ratio=percentile(loaded, 0.99) / median,
        solo_rate=solo_rate,
        loaded_rate=loaded_rate,
        rate_ratio=loaded_rate / solo_rate,
        client_core_share=used,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--prompts", type=int, default=3, help="long prompts in a round")
    parser.add_argument("--outstanding", type=int, default=1, help="long prompts at a time")
    parser.add_argument("--profile", default="", help="execution profile; the server's own if none")
    parser.add_argument("--json", action="store_true", help="one object instead of a table")
    options = parser.parse_args()
    rounds: list[Round] = []
    with serving() as port:
        # The load is that of a server that has been up for a while: memory for the cache is there.
        time.sleep(WARM_SECONDS)
        for _ in range(options.rounds):
            rounds.append(
                measure(
                    port, options.streams, options.prompts, options.outstanding, options.profile
                )
            )
    figures = {name: [asdict(one)[name] for one in rounds] for name in asdict(rounds[0])}
    if options.json:
        print(json.dumps({**vars(options), "rounds": [asdict(one) for one in rounds]}))
        return
    for name, values in figures.items():
        print(
            f"{name:20} {statistics.median(values):9.2f}   ({min(values):.2f} to {max(values):.2f})"
        )


if __name__ == "__main__":
    main()
