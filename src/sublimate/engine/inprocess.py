"""`sublimate.Engine`: the resident loop in the caller's process, for notebooks and tests.

The same loop, rings and pages as the server's: a Region in this process, the loop on a thread of
its own, an EdgeClient driven by whoever calls.

    with sublimate.Engine("model.gguf") as engine:
        for answer in engine.generate(["Once upon a time"], max_tokens=32):
            print(answer.text)

defines: Engine
"""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from .. import _core
from ..config import EngineSettings, Profile, Settings, cache_folder
from ..errors import EngineError, RequestError, nearest
from ..model.adapters import check_adapters
from ..model.files import fetch
from .flight import FINISHED_WELL, Flight
from .loader import load_engine, scripted_engine
from .record import check_sampling, request_words, write_request
from .results import Completion, Piece, Sampling
from .script import Script
from .text import Text, load_text

# The longest that a caller sleeps on the bell before it looks whether another thread has polled
# its events, or whether the loop has ended.
WAIT_SECONDS = 0.05

Prompt = Sequence[int] | str
BatchProgress = Callable[[int, int], None]
"""(prompts done, prompts in all)"""


class Engine:
    """A model with its resident loop. Use it as a context manager, or call close().

    model: a name, a path of a GGUF or packed file, or a Hugging Face repository, as for
    `sublimate serve`; fetched if it is not here. lora: adapters by the names that `adapter` of a
    call says, each a folder of PEFT or a GGUF file. Raises SublimateError (ModelError,
    EngineError).
    Calls from several threads are safe; a list of prompts in one call is the faster way to a batch.
    """

    def __init__(
        self,
        model: str | Path = "default",
        *,
        exact: bool = False,
        quantize: Literal["", "int8", "int4"] = "",
        batch_invariant: bool = True,
        context_length: int = 0,
        threads: int = 0,
        profile: Profile = "high-throughput",
        rope_scaling: Literal["", "none", "linear", "yarn"] = "",
        rope_factor: float = 0.0,
        isa: Literal["", "ref", "portable", "avx2", "avx512", "amx"] = "",
        kv: Literal["bf16", "int8"] = "bf16",
        kv_memory: int = 0,
        speculation: Literal["auto", "off"] = "auto",
        lora: Mapping[str, str | Path] | None = None,
        cache_dir: str | Path | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        folder = Path(cache_dir) if cache_dir else cache_folder(Settings())
        file = fetch(str(model), folder)
        settings = EngineSettings(
            exact=exact,
            quantize=quantize,
            batch_invariant=batch_invariant,
            context_length=context_length,
            threads=threads,
            rope_scaling=rope_scaling,
            rope_factor=rope_factor,
            isa=isa,
            kv=kv,
            kv_memory=kv_memory,
            speculation=speculation,
            lora=check_adapters(f"{name}={path}" for name, path in (lora or {}).items()),
        )
        loop, info, _ = load_engine(str(file.path), settings, progress or (lambda fraction: None))
        self._begin(loop, info, load_text(str(file.path)), profile)

    @classmethod
    def scripted(
        cls,
        script: Script,
        profile: Profile = "high-throughput",
        *,
        prefix_secret: int = 0,
        adapters: Sequence[str] = (),
    ) -> Engine:
        """An engine without a model that answers given token ids, whatever the adapter; for
        tests."""
        engine = cls.__new__(cls)
        loop, info = scripted_engine(script, prefix_secret, adapters)
        engine._begin(loop, info, None, profile, (script.stop_token,))
        return engine

    def _begin(
        self,
        loop: _core.LoopEngine,
        info: dict[str, Any],
        text: Text | None,
        profile: Profile,
        stop_tokens: tuple[int, ...] = (),
    ) -> None:
        self.info: dict[str, Any] = info
        """Model.info: architecture, parameters, isa, threads, context_length, kv_pages, ..."""
        self._text = text
        self._stop_tokens = text.stop_tokens if text else stop_tokens
        self._profile: Profile = profile
        self._vocabulary_size = int(info["vocabulary"])
        self._adapters = ["", *(each["name"] for each in info["adapters"])]
        self._loop = loop
        self._region = _core.Region.create(self._vocabulary_size)
        self._edge = loop.attach(self._region)
        self._client = _core.EdgeClient(self._region, text.vocabulary if text else None)
        self._flights: dict[int, Flight] = {}
        self._next_key = 1
        self._lock = threading.Lock()
        self._closed = False
        self._loop_ended = threading.Event()
        self._thread = threading.Thread(target=self._run_loop, name="loop", daemon=True)
        self._thread.start()

    def _run_loop(self) -> None:
        try:
            self._loop.run()
        finally:
            self._loop_ended.set()

    # ---- life ----------------------------------------------------------------------------------
    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the loop; requests in flight are dropped. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._loop.stop()
        self._thread.join()

    @property
    def stats(self) -> dict[str, int]:
        """The loop's counters (StatsPage in core/ring/ring.h)."""
        return self._loop.stats()

    def audit(self) -> str:
        """Empty if every page has exactly the owners it should have. Only while nothing runs."""
        return self._loop.audit()

    # ---- text ----------------------------------------------------------------------------------
    def tokenise(self, text: str) -> list[int]:
        """Token ids of plain text; control tokens written in it are ordinary text."""
        return self._need_text().encode(text)

    def detokenise(self, ids: Sequence[int]) -> str:
        """Text of token ids; bytes that are no UTF-8 become U+FFFD."""
        return self._need_text().vocabulary.decode(list(ids)).decode("utf-8", errors="replace")

    def _need_text(self) -> Text:
        if self._text is None:
            raise EngineError("This engine has no tokenizer: give token ids.")
        return self._text

    # ---- requests ------------------------------------------------------------------------------
    def generate(
        self,
        prompts: Sequence[Prompt],
        max_tokens: int = 128,
        *,
        adapter: str | Sequence[str] = "",
        progress: BatchProgress | None = None,
        **sampling: Any,
    ) -> list[Completion]:
        """Answers to all prompts, in their order; as many at once as the loop runs.

        adapter: that of all, or one name for each prompt; they run in the same batches.
        sampling: fields of Sampling (temperature, top_k, top_p, min_p, seed, stop_tokens,
        ignore_eos, logprobs, penalties, logit_bias, profile, cache). Raises TypeError on an unknown
        one, RequestError on a wrong value and if a request is refused or fails, ValueError on a
        wrong prompt.
        """
        if isinstance(prompts, str):
            raise TypeError("prompts is a list; for one prompt give [prompt]")
        adapters = [adapter] * len(prompts) if isinstance(adapter, str) else adapter
        if len(adapters) != len(prompts):
            raise ValueError(f"{len(adapters)} adapters for {len(prompts)} prompts")
        chosen = {
            name: self._sampling(max_tokens, {**sampling, "adapter": name})
            for name in set(adapters)
        }
        flights = [
            self._flight(prompt, chosen[name], False)
            for prompt, name in zip(prompts, adapters, strict=True)
        ]
        self._fly(flights, (), progress)
        has_text = self._text is not None
        return [flight.completion(has_text) for flight in flights]

    def stream(self, prompt: Prompt, max_tokens: int = 128, **sampling: Any) -> Iterator[Piece]:
        """Pieces of one answer as they come. Leaving the iterator cancels the request."""
        flight = self._flight(prompt, self._sampling(max_tokens, sampling), True)
        while not self._submit(flight, ()):
            self._pump()
        try:
            while not (flight.finished and not flight.pieces):
                while flight.pieces:
                    yield flight.pieces.popleft()
                if not flight.finished:
                    self._pump()
        finally:
            self._cancel([flight])
        self._raise_unless_well(flight, 0)

    def score(
        self,
        ids: Sequence[int] | Sequence[Sequence[int]] | NDArray[np.int32],
        arithmetic: Literal["prompt", "decode"] = "prompt",
        *,
        adapter: str = "",
        progress: BatchProgress | None = None,
    ) -> Any:
        """(log-probability float32, arg-max int32) of every position, without generating.

        Position p: of token p, given those before it; position 0 has nothing before it and holds
        (0, -1). One list of ids gives one pair of arrays, a list of lists a list of pairs.
        arithmetic: that of prompt rows, or that of generated rows.
        """
        single = len(ids) > 0 and not isinstance(ids[0], Sequence | np.ndarray)
        prompts = cast(Sequence[Any], [ids] if single else ids)
        chosen = self._sampling(0, {"adapter": adapter, "cache": False})
        flights = [self._flight(prompt, chosen, False) for prompt in prompts]
        flags = ("score", "score_decode") if arithmetic == "decode" else ("score",)
        results: dict[int, tuple[NDArray[np.float32], NDArray[np.int32]]] = {}

        def collect(flight: Flight) -> None:
            logprobs, argmax = self._client.scores(flight.slot, flight.generation)
            results[id(flight)] = (np.array(logprobs), np.array(argmax))

        self._fly(flights, flags, progress, collect)
        pairs = [results[id(flight)] for flight in flights]
        return pairs[0] if single else pairs

    # ---- the client's side of the rings ----------------------------------------------------------
    def _sampling(self, max_tokens: int, fields: dict[str, Any]) -> Sampling:
        defaults: dict[str, Any] = {"profile": self._profile, "stop_tokens": self._stop_tokens}
        given = {**defaults, **fields, "max_tokens": max_tokens}
        bias = given.get("logit_bias")
        if isinstance(bias, dict):
            given["logit_bias"] = list(cast(dict[int, float], bias).items())
        unknown = set(given) - set(Sampling.__struct_fields__)
        if unknown:
            raise TypeError(f"unknown sampling fields: {', '.join(sorted(unknown))}")
        try:
            sampling = msgspec.convert(given, Sampling)
        except msgspec.ValidationError as error:
            raise RequestError(f"wrong sampling field: {error}") from None
        check_sampling(sampling, self._vocabulary_size)
        if sampling.adapter not in self._adapters:
            told = nearest(sampling.adapter, self._adapters)
            raise RequestError(f"There is no adapter {sampling.adapter!r}.{told}")
        return sampling

    def _flight(self, prompt: Prompt, sampling: Sampling, keep_pieces: bool) -> Flight:
        ids = self.tokenise(prompt) if isinstance(prompt, str) else prompt
        tokens = np.asarray(ids, dtype=np.int64)
        context = int(self.info["context_length"])
        if tokens.ndim != 1 or not 1 <= len(tokens) <= context:
            raise ValueError(f"a prompt of {tokens.size} tokens; the context is {context}")
        if tokens.min() < 0 or tokens.max() >= self._vocabulary_size:
            raise ValueError("a token id is outside the vocabulary")
        return Flight(tokens.astype(np.int32), sampling, keep_pieces)

    def _fly(
        self,
        flights: list[Flight],
        flags: Sequence[str],
        progress: BatchProgress | None,
        at_end: Callable[[Flight], None] | None = None,
    ) -> None:
        """Submit all, as many at once as fit, and wait for all. Cancels the rest on an error."""
        waiting, flying, done = list(reversed(flights)), list[Flight](), 0
        places = {id(flight): place for place, flight in enumerate(flights)}
        try:
            while waiting or flying:
                while waiting and len(flying) < _core.LIMITS["SEQUENCES_MAX"]:
                    if not self._submit(waiting[-1], flags):
                        break
                    flying.append(waiting.pop())
                self._pump()
                for flight in [flight for flight in flying if flight.finished]:
                    self._raise_unless_well(flight, places[id(flight)])
                    if at_end is not None:
                        with self._lock:
                            at_end(flight)
                    flying.remove(flight)
                    done += 1
                    if progress is not None:
                        progress(done, len(flights))
        finally:
            self._cancel(flying)

    def _submit(self, flight: Flight, flags: Sequence[str]) -> bool:
        """False if no slot is free now."""
        self._check_open()
        words = request_words(len(flight.tokens), flight.sampling, "score" in flags)
        room = int(self.info["context_length"]) - len(flight.tokens)
        with self._lock:
            acquired = self._client.acquire(words)
            if acquired is None:
                return False
            slot, generation, words_view = acquired
            view = np.asarray(words_view)
            budget = min(flight.sampling.max_tokens, room)
            key, self._next_key = self._next_key, self._next_key + 1
            self._flights[key] = flight
            try:
                write_request(
                    view,
                    flight.tokens,
                    flight.sampling,
                    token_budget=budget,
                    adapter=self._adapters.index(flight.sampling.adapter),
                    flags=flags,
                )
                flight.submitted()
                self._client.submit(slot, generation, key, format="raw")
            except BaseException:
                self._take_back(key, slot, generation)
                raise
            flight.slot, flight.generation = slot, generation
        return True

    def _take_back(self, key: int, slot: int, generation: int) -> None:
        """After an error: either the loop owns the slot, and then it ends the request, or nobody
        does."""
        try:
            self._client.discard(slot, generation)
            del self._flights[key]
        except ValueError:
            self._client.cancel(slot, generation)

    def _pump(self) -> None:
        """Take what has arrived, or wait a moment for it."""
        self._check_open()
        with self._lock:
            if self._poll() or not self._client.sleep_prepare():
                return
        select.select([self._region.fds[2]], [], [], WAIT_SECONDS)
        with self._lock:
            self._client.clear_bell()

    def _poll(self) -> bool:
        vocabulary = self._text.vocabulary if self._text else None
        events = self._client.poll()
        for event in events:
            self._flights[event.key].take(event, vocabulary)
            if event.finished:
                del self._flights[event.key]
        return bool(events)

    def _cancel(self, flights: Sequence[Flight]) -> None:
        """Cancel what has not finished and wait until the loop has said so."""
        open_flights = [flight for flight in flights if not flight.finished]
        if self._closed or self._loop_ended.is_set():
            return
        with self._lock:
            for flight in open_flights:
                self._client.cancel(flight.slot, flight.generation)
        while not all(flight.finished for flight in open_flights):
            self._pump()
        with self._lock:
            for flight in flights:
                if (
                    flight.finish_reason == "scored"
                ):  # its results hold the slot until they are read
                    self._client.discard(flight.slot, flight.generation)

    def _check_open(self) -> None:
        if self._closed:
            raise EngineError("The engine is closed.")
        if self._loop_ended.is_set():
            raise EngineError("The loop of the engine has ended.")

    def _raise_unless_well(self, flight: Flight, index: int) -> None:
        if flight.finish_reason not in FINISHED_WELL:
            why = f" ({flight.refuse_reason})" if flight.refuse_reason else ""
            raise RequestError(f"prompt {index}: the request was {flight.finish_reason}{why}.")
