"""The clients of the soak: threads that ask for all kinds of things, read, leave, and come back.

Every answer is compared with the one that the same prompt had when nothing else ran.

defines: PROMPTS, CARRIERS, Tally, Visitor, learn, fill
"""

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from sublimate.client import http_client
from sublimate.config import PROFILES

PROMPTS = [
    f"Soak number {number}: " + " ".join(f"word{number * 31 + k}" for k in range(4 + 9 * number))
    for number in range(24)
]
CARRIERS = ("http/1.1", "http/1.1", "frames", "grpc-h2", "h3", "grpc-h3")
ANSWER_TOKENS = 48
TIMEOUT_SECONDS = 120.0
PAUSE_SECONDS = (0.1, 0.5)
FILLERS = 4
EXPLAINED_SECONDS = 30.0
"""After a kill: requests in flight fail, new ones find no engine or edge for a moment, and who
speaks QUIC finds out by its own timers."""


class Tally:
    """What came of all requests; when processes were killed. From any thread."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.unexplained: list[str] = []
        self.wrong: list[str] = []
        self._lock = threading.Lock()
        self._killed_at: list[float] = []

    def killed(self) -> None:
        with self._lock:
            self._killed_at.append(time.monotonic())

    def note(self, outcome: str) -> None:
        with self._lock:
            self.counts[outcome] += 1

    def failed(self, what: str, began: float) -> None:
        """Explained by a kill while it ran or not long before; else a finding."""
        with self._lock:
            known = any(began - EXPLAINED_SECONDS < at < time.monotonic() for at in self._killed_at)
            self.counts["lost to a kill" if known else "unexplained"] += 1
            if not known:
                self.unexplained.append(what)

    def differs(self, prompt: str, text: str) -> None:
        with self._lock:
            self.counts["wrong"] += 1
            self.wrong.append(f"{prompt!r} -> {text!r}")

    @property
    def requests(self) -> int:
        with self._lock:
            return sum(self.counts.values())


def request_of(prompt: str, **fields: Any) -> dict[str, Any]:
    """The scripted engine says a prompt again from its begin on: its system text tells it apart."""
    body = {"model": "default", "max_tokens": ANSWER_TOKENS, "temperature": 0, **fields}
    return {**body, "system": prompt[:64], "messages": [{"role": "user", "content": prompt}]}


def text_of(lines: Iterator[str]) -> str:
    """Of server-sent events. Raises ValueError for a stream with an error, or one that is cut."""
    text, ended = "", False
    for line in lines:
        if not line.startswith("data: "):
            continue
        event = json.loads(line.removeprefix("data: "))
        if event["type"] == "error":
            raise ValueError(event["error"]["message"])
        if event["type"] == "content_block_delta":
            text += event["delta"].get("text", "")
        ended = ended or event["type"] == "message_stop"
    if not ended:
        raise ValueError("the stream was cut")
    return text


def learn(url: str) -> dict[str, str]:
    """Prompt -> its answer, asked one by one."""
    answers: dict[str, str] = {}
    with httpx.Client(base_url=url, timeout=TIMEOUT_SECONDS) as client:
        for prompt in PROMPTS:
            reply = client.post("/v1/messages", json=request_of(prompt)).raise_for_status()
            answers[prompt] = "".join(block["text"] for block in reply.json()["content"])
    assert len(set(answers.values())) > len(PROMPTS) // 2, "answers tell prompts apart"
    return answers


def fill(url: str, count: int) -> int:
    """Asks so often, each time under a key of its own: whatever a server keeps of its requests is
    full then. How many had another status than 200."""
    with httpx.Client(base_url=url, timeout=TIMEOUT_SECONDS) as client:

        def ask(number: int) -> bool:
            body = request_of(PROMPTS[number % len(PROMPTS)])
            key = {"idempotency-key": f"fill-{number}"}
            return client.post("/v1/messages", json=body, headers=key).status_code == 200

        with ThreadPoolExecutor(FILLERS) as threads:
            return count - sum(threads.map(ask, range(count)))


class Visitor(threading.Thread):
    """One client over one carrier. Rests while `rest` is set; `resting` says that it does."""

    def __init__(
        self, carrier: str, url: str, certificate: Path, answers: dict[str, str], tally: Tally
    ) -> None:
        super().__init__(name=carrier, daemon=True)
        self.rest, self.resting, self.ended = threading.Event(), threading.Event(), False
        self._carrier, self._answers, self._tally = carrier, answers, tally
        self._random = random.Random(f"{carrier}{id(self)}")
        if carrier == "http/1.1":
            self._http = httpx.Client(
                base_url=url, timeout=TIMEOUT_SECONDS, verify=str(certificate)
            )
        else:
            options = {"base_url": url, "timeout": TIMEOUT_SECONDS, "library": "httpx"}
            self._http = http_client(carriers=(carrier,), verify=str(certificate), **options)

    def run(self) -> None:
        actions = [self._stream] * 4 + [self._whole] * 3 + [self._leave] * 3
        actions += [self._mistake, self._count, self._openai, self._file]
        while not self.ended:
            if self.rest.is_set():
                self.resting.set()
                time.sleep(0.05)
                continue
            self.resting.clear()
            self._once(self._random.choice(actions))
            time.sleep(self._random.uniform(*PAUSE_SECONDS))
        self._http.close()

    def _once(self, action: Callable[[], str]) -> None:
        began = time.monotonic()
        try:
            self._tally.note(f"{action()}, {self._carrier}")
        except Exception as error:
            said = f"{self._carrier} {action.__name__}: {type(error).__name__}: {error}"
            self._tally.failed(said, began)

    def _asked(self, **fields: Any) -> tuple[str, dict[str, Any]]:
        prompt = self._random.choice(PROMPTS)
        profile = self._random.choice(PROFILES)
        return prompt, request_of(prompt, execution_profile=profile, **fields)

    def _compare(self, prompt: str, text: str) -> None:
        if text != self._answers[prompt]:
            self._tally.differs(prompt, text)

    def _stream(self) -> str:
        prompt, body = self._asked(stream=True)
        with self._http.stream("POST", "/v1/messages", json=body) as reply:
            self._check(reply)
            self._compare(prompt, text_of(reply.iter_lines()))
        return "streamed whole"

    def _whole(self) -> str:
        prompt, body = self._asked()
        reply = self._check(self._http.post("/v1/messages", json=body))
        self._compare(prompt, "".join(block["text"] for block in reply.json()["content"]))
        return "answered whole"

    def _leave(self) -> str:
        """Goes before the end: at once, or after some of the answer."""
        _, body = self._asked(stream=True)
        with self._http.stream("POST", "/v1/messages", json=body) as reply:
            pieces = self._check(reply).iter_raw()
            for _ in range(self._random.randrange(6)):
                next(pieces, b"")
        return "cancelled"

    def _mistake(self) -> str:
        _, body = self._asked()
        body["temperature"] = 99
        reply = self._http.post("/v1/messages", json=body)
        if reply.status_code == 400:
            return "refused as it should"
        self._check(reply)
        raise ValueError(f"a mistake was answered with {reply.status_code}")

    def _count(self) -> str:
        _, body = self._asked()
        body = {name: body[name] for name in ("model", "system", "messages")}
        self._check(self._http.post("/v1/messages/count_tokens", json=body))
        return "counted"

    def _openai(self) -> str:
        prompt, _ = self._asked()
        body = request_of(prompt, stream=self._random.random() < 0.5)
        body["messages"].insert(0, {"role": "system", "content": body.pop("system")})
        reply = self._check(self._http.post("/v1/chat/completions", json=body))
        if not body["stream"]:
            self._compare(prompt, reply.json()["choices"][0]["message"]["content"])
        elif "[DONE]" not in reply.text:
            raise ValueError("the stream was cut")
        return "chat completion"

    def _file(self) -> str:
        name = self._random.choice(("a.txt", "b.txt"))
        made = self._http.post("/v1/files", files={"file": (name, b"text " * 2000)})
        identifier = self._check(made).json()["id"]
        self._check(self._http.delete(f"/v1/files/{identifier}"))
        return "file there and gone"

    def _check(self, reply: httpx.Response) -> httpx.Response:
        if reply.status_code != 200:
            reply.read()
            raise ValueError(f"status {reply.status_code}: {reply.text[:200]}")
        return reply
