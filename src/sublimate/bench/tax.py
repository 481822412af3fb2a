"""The tax of serving: what HTTP, JSON, templates, tokens and frames cost on top of the engine.

Four figures, never one: the ceiling with an engine that computes nothing (tax_ceiling), the time
through HTTP over the time in-process (tax_engine), the ledger of one request (tax_ledger), and the
same load while other processes keep the cores busy (tax_interference). Here: what they share.

defines: FIGURES, Plan, Tail, Workbench, Note
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..errors import ConfigError
from ..model.source import metadata_of
from ..model.template import template_from_metadata
from ..model.tokenizer import tokenizer_from_metadata
from ..model.turns import said
from .apis import MESSAGES, Api, headers, request_body
from .figures import percentile
from .http import Target
from .load import Peer
from .processes import Server, own_server
from .prompts import PromptMaker
from .streams import Streams

FIGURES = {
    1: "ceiling with a mock engine",
    2: "tax with the real engine",
    3: "ledger of one request",
    4: "interference",
}
STREAMS_MAX = 4096
PROMPT_TOKENS_MIN = 16
"""A number that tells prompts apart, and some words."""
GENERATE_TOKENS_MIN = 2
SECONDS_MIN = 0.1
SEED_STRIDE = 1 << 20
Note = Callable[[str], None]
"""Told what is being measured."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured, and how much of it."""

    model_path: str
    model_name: str
    engine: dict[str, Any]
    """Fields of EngineSettings, for the server and for the in-process engine alike."""
    figures: tuple[int, ...]
    prompt_tokens: int
    generate_tokens: int
    rounds: int
    seconds: float
    """Of each load of figure 1, and a fifth of each load of figure 4."""
    ceiling_concurrencies: tuple[int, ...]
    tax_concurrencies: tuple[int, ...]
    interference_concurrency: int
    busy_processes: int
    """0: as many as there are cores."""
    twin: Path | None
    """bench/uvicorn_twin.py, where it can run."""
    seed: int

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        unknown = [number for number in self.figures if number not in FIGURES]
        if unknown or not self.figures:
            names = ", ".join(f"{number} ({name})" for number, name in FIGURES.items())
            raise ConfigError(f"--figure {', '.join(map(str, unknown))}: there are {names}.")
        for name, counts in (
            ("--ceiling", self.ceiling_concurrencies),
            ("--concurrency", self.tax_concurrencies),
        ):
            if not counts:
                raise ConfigError(f"{name}: expected whole numbers above 0, such as 1,32.")
            if max(counts) > STREAMS_MAX:
                raise ConfigError(f"{name} {max(counts)}: at most {STREAMS_MAX} at once.")
        if self.prompt_tokens < PROMPT_TOKENS_MIN:
            raise ConfigError(f"--prompt {self.prompt_tokens}: at least {PROMPT_TOKENS_MIN}.")
        if self.generate_tokens < GENERATE_TOKENS_MIN:
            raise ConfigError(f"--generate {self.generate_tokens}: at least {GENERATE_TOKENS_MIN}.")
        if self.rounds < 1:
            raise ConfigError(f"--rounds {self.rounds}: at least 1.")
        if self.seconds < SECONDS_MIN:
            raise ConfigError(f"--seconds {self.seconds}: at least {SECONDS_MIN}.")
        if self.interference_concurrency < 1 or self.busy_processes < 0:
            raise ConfigError("--streams and --busy: at least 1, and at least 0.")
        if self.twin is not None and not self.twin.is_file():
            raise ConfigError(f"--twin {self.twin}: there is no such file.")


class Tail(msgspec.Struct, frozen=True):
    """p50, p99 and p99.9, in milliseconds."""

    p50: float
    p99: float
    p999: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Tail:
        return cls(*(percentile(values, fraction) for fraction in (0.50, 0.99, 0.999)))


class Workbench:
    """The model's text side, prompts, and servers of one's own."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        metadata = metadata_of(plan.model_path)
        self.tokenizer = tokenizer_from_metadata(metadata)
        self._template = template_from_metadata(metadata, self.tokenizer)
        self._makers = 0

    def count(self, text: str) -> int:
        """Tokens of a text."""
        return len(self.tokenizer.encode(text))

    def prompts(self) -> PromptMaker:
        """Prompts that nobody before got: each differs from its first word on, so that a prefix
        cache finds no more than the template's own beginning. The same in each run of a seed."""
        self._makers += 1
        seed = self.plan.seed * SEED_STRIDE + self._makers
        return PromptMaker(self.plan.prompt_tokens, self.count, seed)

    def ids(self, prompt: str) -> list[int]:
        """What the server makes of a prompt."""
        rendered = self._template.render([said("user", prompt)])
        return self.tokenizer.encode_rendered(rendered.text, rendered.marker)

    def body(self, prompt: str, tokens: int) -> bytes:
        """A greedy request for exactly so many tokens, of our own servers."""
        return request_body(MESSAGES, "default", prompt, tokens, {"ignore_eos": True})

    def peer_body(self, peer: Peer, prompt: str, tokens: int) -> bytes:
        """The same for another server, as far as it can be made to generate an exact length."""
        forcing = dict(peer.forcing)
        if "min_tokens" in forcing:
            forcing["min_tokens"] = tokens
        return request_body(peer.api, peer.model, prompt, tokens, forcing)

    @contextlib.contextmanager
    def serving(self, *more: str) -> Generator[Server]:
        """A server of ours with the plan's model. Raises EngineError."""
        command = ["-m", "sublimate", "serve", "--port", "0", "--host", "127.0.0.1", "--json"]
        command += ["--model", self.plan.model_path, "--no-stay"]
        for name, value in self.plan.engine.items():
            flag = "--" + name.replace("_", "-")
            if isinstance(value, bool):
                command += [flag] if value else []
            elif value:
                command += [flag, str(value)]
        with own_server([*command, *more], "supervisor") as server:
            yield server


@contextlib.contextmanager
def streams_to(url: str, api: Api = MESSAGES, api_key: str = "") -> Generator[tuple[Streams, str]]:
    """Connections to a server and the path of its requests. Raises PeerError."""
    target = Target.parse(url)
    with Streams(target, headers(api_key)) as streams:
        yield streams, target.path + api.path


def numbered(bodies: Sequence[bytes], mark: bytes) -> Iterator[bytes]:
    """Bodies without end: each with a number of its own in place of the mark."""
    if not bodies or not all(body.count(mark) == 1 for body in bodies):
        raise ValueError("each body has one place for its number")
    number = 0
    while True:
        for body in bodies:
            number += 1
            yield body.replace(mark, b"%09d" % number, 1)
