"""Load in stages for any server of the Messages API, or of OpenAI's completions (`--api openai`).

    locust -f locustfile.py --headless --host http://127.0.0.1:8000 --stages 5:10s,20:30s,20:60s

Each message is a stream. Its tags are the execution profiles: `--tags low-latency` runs one alone.
At the end thresholds are looked at, and the exit status is 1 if one is broken, 0 if none is.
"""

import itertools
import json
import math
import os
import random
import statistics
import time
from collections import Counter
from dataclasses import dataclass

import gevent
import requests
from locust import HttpUser, LoadTestShape, between, events, tag, task
from locust.runners import WorkerRunner

PROFILES = ("low-latency", "high-throughput", "long-context")
LONG_CONTEXT_TIMES = 8
"""How much longer the prompts of that profile are."""
WINDOWS = 5
"""Equal parts of the last stage, whose p99s are compared."""
TIMEOUT_SECONDS = 120
PROBE_SECONDS = 1.0
PATHS = {"messages": "/v1/messages", "openai": "/v1/chat/completions"}
STOP_SECONDS = 30
"""How long messages may go on when their user is taken away; those that do are failures."""
UNITS_SECONDS = {"s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True)
class Message:
    """One that has ended. Times in seconds since the epoch, so that processes compare."""

    profile: str
    begun: float
    first_byte: float
    """Of text; 0 if none came."""
    ended: float
    failure: str


MESSAGES: list[Message] = []
PROBES: Counter[bool] = Counter()
"""By whether it was answered."""
NUMBERS = itertools.count()
BEGUN = {"seconds": 0.0, "knows_profiles": False}


# ---- options -------------------------------------------------------------------------------------
@events.init_command_line_parser.add_listener
def add_options(parser) -> None:
    more = parser.add_argument
    more("--api", choices=sorted(PATHS), default="messages", help="What the server speaks.")
    more("--model", default="default", help="Model to ask for.")
    more("--api-key", default=os.environ.get("ANTHROPIC_API_KEY", "none"), is_secret=True)
    more("--max-tokens", type=int, default=64, help="Longest answer.")
    more("--prompt-words", type=int, default=60, help="Of a prompt; eight times for long-context.")
    more("--stages", default="5:10s,20:30s,20:60s", help="USERS:TIME,... one after the other.")
    more("--first-byte-p99", type=float, default=5000, help="Threshold: ms to the first text.")
    more("--failures", type=float, default=0.01, help="Threshold: share of messages that fail.")
    more("--availability", type=float, default=0.999, help="Threshold: share of probes answered.")
    more("--deviation", type=float, default=1.0, help="Threshold: of the p99s in the last stage.")


def read_stages(text: str) -> list[tuple[int, float]]:
    """(users, seconds) of each stage. Raises ValueError."""
    stages = []
    for part in text.split(","):
        users, _, length = part.partition(":")
        stages.append((int(users), float(length[:-1]) * UNITS_SECONDS[length[-1:]]))
    return stages


class Stages(LoadTestShape):
    """As many users as the stage says; a stage's change is spread over its first tenth."""

    def tick(self) -> tuple[int, float] | None:
        passed = self.get_run_time()
        before = 0
        for users, seconds in read_stages(self.runner.environment.parsed_options.stages):
            if passed < seconds:
                return users, max(1.0, abs(users - before) / max(1.0, seconds / 10))
            passed -= seconds
            before = users
        return None


# ---- one message ---------------------------------------------------------------------------------
def read_data(data: str) -> tuple[bool, bool, str]:
    """(has text, is the end, error) of an event of a stream, in either style."""
    if data == "[DONE]":
        return False, True, ""
    event = json.loads(data)
    if event.get("type") == "error" or event.get("error"):
        error = event.get("error") or {}
        return False, False, str(error.get("type", "error"))
    delta = event.get("delta") or next(iter(event.get("choices") or [{}])).get("delta") or {}
    text = any(delta.get(name) for name in ("text", "thinking", "content", "reasoning_content"))
    return text, event.get("type") == "message_stop", ""


class Client(HttpUser):
    """Asks, reads the whole answer, pauses a little, asks again."""

    wait_time = between(0.05, 0.25)

    @tag("low-latency")
    @task(2)
    def low_latency(self) -> None:
        self.ask("low-latency", 1)

    @tag("high-throughput")
    @task(2)
    def high_throughput(self) -> None:
        self.ask("high-throughput", 1)

    @tag("long-context")
    @task(1)
    def long_context(self) -> None:
        self.ask("long-context", LONG_CONTEXT_TIMES)

    def ask(self, profile: str, times: int) -> None:
        begun = time.time()
        first_byte, failure = 0.0, "no end in time"
        try:
            first_byte, failure = self.read(profile, times)
        finally:
            # Also when the user is taken away, or the longest answers would not count. A user that
            # goes while it pauses may have begun its next message, which is no fault of the server.
            ended = time.time()
            if first_byte or failure != "no end in time" or ended - begun >= STOP_SECONDS:
                MESSAGES.append(Message(profile, begun, first_byte, ended, failure))
        if first_byte:
            self.environment.events.request.fire(
                request_type="first byte",
                name=profile,
                response_time=(first_byte - begun) * 1000,
                response_length=0,
                context={"profile": profile},
                exception=None,
            )

    def read(self, profile: str, times: int) -> tuple[float, str]:
        """(when its first text came or 0, why it failed or empty)."""
        options = self.environment.parsed_options
        begun = time.time()
        with self.client.post(
            PATHS[options.api],
            json=self.body(profile, times),
            headers=headers(options),
            stream=True,
            catch_response=True,
            timeout=TIMEOUT_SECONDS,
            name=profile,
        ) as reply:
            first_byte, failure = 0.0, "the stream broke off"
            if reply.status_code != requests.codes.ok:
                failure = f"status {reply.status_code}"
            else:
                try:
                    for line in reply.iter_lines(chunk_size=None):
                        if not line.startswith(b"data:"):
                            continue
                        has_text, ends, error = read_data(line[5:].strip().decode())
                        first_byte = first_byte or (time.time() if has_text else 0.0)
                        if ends or error:
                            failure = error
                            break
                except (requests.RequestException, ValueError) as error:
                    failure = type(error).__name__
            reply.request_meta["response_time"] = (time.time() - begun) * 1000
            reply.failure(failure) if failure else reply.success()
        return first_byte, failure

    def body(self, profile: str, times: int) -> dict:
        """Of a prompt that nobody has asked before."""
        options = self.environment.parsed_options
        chosen = random.Random(next(NUMBERS) * 1009 + os.getpid())
        words = (str(chosen.randrange(1000)) for _ in range(options.prompt_words * times))
        prompt = f"Which of these numbers is the largest? {' '.join(words)}"
        body = {
            "model": options.model,
            "max_tokens": options.max_tokens,
            "stream": True,
            "messages": [{"role": "user", "content": prompt}],
        }
        return body | ({"execution_profile": profile} if BEGUN["knows_profiles"] else {})


def headers(options) -> dict[str, str]:
    if options.api == "openai":
        return {"authorization": f"Bearer {options.api_key}"}
    return {"x-api-key": options.api_key, "anthropic-version": "2023-06-01"}


# ---- probes --------------------------------------------------------------------------------------
def probe(environment) -> None:
    """Once a second: is there somebody?"""
    options = environment.parsed_options
    while True:
        begun = time.time()
        try:
            with requests.get(
                f"{environment.host}/v1/models", headers=headers(options), timeout=5
            ) as reply:
                answered = reply.ok
        except requests.RequestException:
            answered = False
        PROBES[answered] += 1
        gevent.sleep(max(0.0, PROBE_SECONDS - (time.time() - begun)))


@events.init.add_listener
def wait_for_ends(environment, **_) -> None:
    environment.stop_timeout = max(environment.stop_timeout, STOP_SECONDS)


@events.test_start.add_listener
def begin(environment, **_) -> None:
    if not BEGUN["seconds"]:
        BEGUN["seconds"] = time.time()
    # Other servers than ours may refuse a field that they do not know.
    try:
        with requests.get(f"{environment.host}/.well-known/sublimate", timeout=5) as reply:
            BEGUN["knows_profiles"] = reply.ok and "profiles" in reply.text
    except requests.RequestException:
        BEGUN["knows_profiles"] = False
    BEGUN["probing"] = gevent.spawn(probe, environment)


@events.test_stop.add_listener
def end(**_) -> None:
    BEGUN["probing"].kill()


# ---- with --processes or --worker: what workers saw goes to the master ---------------------------
@events.report_to_master.add_listener
def report(client_id, data) -> None:
    data["messages"] = [vars(message) for message in MESSAGES]
    data["probes"] = [PROBES[False], PROBES[True]]
    MESSAGES.clear()
    PROBES.clear()


@events.worker_report.add_listener
def hear(client_id, data) -> None:
    MESSAGES.extend(Message(**message) for message in data.get("messages", []))
    failed, answered = data.get("probes", (0, 0))
    PROBES[False] += failed
    PROBES[True] += answered


# ---- thresholds ----------------------------------------------------------------------------------
def percentile(values: list[float], share: float) -> float:
    """The smallest value that this share of all does not exceed; infinite without any."""
    if not values:
        return math.inf
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def first_bytes_ms(messages: list[Message]) -> list[float]:
    return [(one.first_byte - one.begun) * 1000 for one in messages if one.first_byte]


def deviation(messages: list[Message], begun: float, seconds: float) -> float:
    """Of the p99s of the windows of a stage: standard deviation over mean. Infinite without two."""
    windows: list[list[Message]] = [[] for _ in range(WINDOWS)]
    for one in messages:
        place = math.floor((one.begun - begun) / seconds * WINDOWS)
        if 0 <= place < WINDOWS and one.first_byte:
            windows[place].append(one)
    tails = [percentile(first_bytes_ms(window), 0.99) for window in windows if window]
    return statistics.stdev(tails) / statistics.mean(tails) if len(tails) > 1 else math.inf


def verdicts(options) -> list[tuple[str, float, float, bool]]:
    """(threshold, measured, bound, holds)."""
    stages = read_stages(options.stages)
    last = BEGUN["seconds"] + sum(seconds for _, seconds in stages[:-1])
    failed = sum(bool(one.failure) for one in MESSAGES) / len(MESSAGES) if MESSAGES else 1.0
    available = PROBES[True] / PROBES.total() if PROBES else 0.0
    tail = percentile(first_bytes_ms(MESSAGES), 0.99)
    spread = deviation(MESSAGES, last, stages[-1][1])
    return [
        ("first byte p99, ms", tail, options.first_byte_p99, tail <= options.first_byte_p99),
        ("failures", failed, options.failures, failed <= options.failures),
        ("availability", available, options.availability, available >= options.availability),
        ("deviation of p99", spread, options.deviation, spread <= options.deviation),
    ]


@events.quitting.add_listener
def judge(environment, **_) -> None:
    if isinstance(environment.runner, WorkerRunner):
        return
    lines = [f"{'profile':<18}{'messages':>9}{'failed':>8}{'p50 ms':>9}{'p90 ms':>9}{'p99 ms':>9}"]
    for profile in PROFILES:
        chosen = [one for one in MESSAGES if one.profile == profile]
        if chosen:
            times = first_bytes_ms(chosen)
            failed = sum(bool(one.failure) for one in chosen)
            tails = "".join(f"{percentile(times, share):>9.1f}" for share in (0.5, 0.9, 0.99))
            lines.append(f"{profile:<18}{len(chosen):>9}{failed:>8}{tails}")
    results = verdicts(environment.parsed_options)
    for name, measured, bound, holds in results:
        verdict = "holds " if holds else "BROKEN"
        lines.append(f"{verdict} {name}: {measured:.4g} (bound {bound:.4g})")
    environment.process_exit_code = 0 if all(holds for *_, holds in results) else 1
    # After locust's own tables.
    environment.events.quit.add_listener(lambda **_: print("\n".join(lines), flush=True))
