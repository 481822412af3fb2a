"""The native core: rings, resident loop, model, text path. About thirty names and nothing else.

Call order of a server: Gguf/Model.load and LoopEngine (engine process); Region.create (supervisor);
Region.attach, EdgeClient, Vocabulary, EdgeClient.open / submit / poll (edge process).
"""

from array import array
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

LIMITS: Final[dict[str, int]]
"""Every scalar constant of core/limits.h by its name (SEQUENCES_MAX, PAGE_TOKENS, ...)."""
REQUEST_FIELDS: Final[dict[str, tuple[int, int]]]
"""Field of RequestHeader -> (first word, word count)."""
REQUEST_HEADER_WORDS: Final[int]
REQUEST_VERSION: Final[int]
FLAGS: Final[dict[str, int]]
"""RequestFlags by name without the FLAG_ prefix, lower case: ignore_eos, score, score_decode,
no_cache, masked."""

POLICY: Final[dict[str, Any]]
"""What the loop is compiled with: a LayerPolicy of proto/sublimate/v1/layer.proto by field name;
fallback_cpu_threshold_ppm in millionths, split_algorithm as the enum's number, profiles in the
order of the enum."""
POLICY_DIGEST: Final[str]
"""SHA-256 of that LayerPolicy's bytes, in hex; the header X-Layer-Config."""
TRACE_EVENTS: Final[list[tuple[str, str]]]
"""(name, names of the arguments with a space between them) of each kind of trace record, which is
the index here. core/ring/trace_ring.h says what they mean."""

def decide(words: Sequence[int], borders: Sequence[tuple[int, int]]) -> list[int]:
    """The decision of core/policy/decide.h: the 15 words of its DecisionInput and (position, kind)
    per border, to the words of its Decision with as many shard ends as there are shards.
    sublimate.policy.decide has names for them. Raises TypeError for what is no int32."""

class CoreError(Exception):
    """The world's fault (a bad file, an unsupported model, too little memory). The text is for a
    person."""

class Gguf:
    """Memory-mapped GGUF header; of a model in parts, of all. Raises CoreError on a malformed,
    truncated or unsupported file; with `any_type` the tensors may be of any type."""
    def __init__(self, path: str, *, any_type: bool = False) -> None: ...
    @staticmethod
    def join(header: bytes, files: Sequence[tuple[str, int]]) -> Gguf:
        """A GGUF header made for files of another format, each (path, bytes). They lie behind it
        as one file, each from a page border on; offsets of tensors count from the header's end."""
    def plan(
        self,
        *,
        exact: bool = False,
        context_length: int = 0,
        rope_scaling: str = "",
        rope_factor: float = 0.0,
    ) -> dict[str, Any]:
        """What loading would make of it, of its header alone: architecture, sizes, weight_bytes
        (packed; 0: a type is not supported) and kv_bytes_per_token. Raises CoreError with what
        Model.load would say."""
    @property
    def version(self) -> int: ...
    @property
    def parts(self) -> int:
        """Files that it is in."""
    @property
    def unsupported_types(self) -> list[str]: ...
    @property
    def file_bytes(self) -> int: ...
    @property
    def metadata(self) -> dict[str, Any]:
        """Key -> int, float, bool, str (invalid UTF-8 replaced) or list of those. Without
        tokenizer.huggingface.json, which nobody reads."""
    @property
    def tensors(self) -> list[tuple[str, str, tuple[int, ...], int]]:
        """(name, type name, shape with the fastest dimension first, bytes)."""
    @property
    def packed(self) -> dict[str, Any] | None:
        """Of what `convert` has written: exact, quantize, weight_bytes. Else the source's."""

def convert(
    source: str,
    target: str,
    *,
    exact: bool = False,
    quantize: str = "",
    replace: bool = False,
    threads: int = 0,
    joined: Gguf | None = None,
    text: str = "",
    progress: Callable[[float], None] | None = None,
) -> None:
    """Writes a packed file (core/model/packed_file.h) of a model, whole or not at all. quantize: as
    for Model.load; threads 0: all cores. joined: a folder's tensors, with what it says of text;
    `source` is its name then. Raises CoreError."""

def verify_packed(path: str) -> None:
    """Reads all of a packed file. Raises CoreError if it is not as it was written."""

AdapterTold = tuple[str, str, Sequence[tuple[str, str, str, int, int, int, float]]]
"""(name, path, tensors). No tensors: a GGUF file. Else, of each: (name in the file, target as GGUF
adapters call it, such as blk.0.attn_q.weight.lora_a, F32 or F16 or BF16, rows, columns, offset in
the file, what the product of A and B is multiplied by)."""

class Model:
    """A loaded, packed model. Immutable; keeps its weights for as long as it lives."""
    @staticmethod
    def load(
        path: str,
        *,
        exact: bool = False,
        quantize: str = "",
        batch_invariant: bool = True,
        context_length: int = 0,
        rope_scaling: str = "",
        rope_factor: float = 0.0,
        threads: int = 0,
        isa: str = "",
        kv: str = "bf16",
        kv_bytes: int = 0,
        engines: int = 1,
        share_weights: str = "never",
        shared_weights_fd: int = -1,
        adapters: Sequence[AdapterTold] = (),
        header: bytes = b"",
        files: Sequence[tuple[str, int]] = (),
        progress: Callable[[float], None] | None = None,
    ) -> Model:
        """quantize int8, int4: weights of 16 and 32 bits are rounded while they are packed
        (core/model/quantise.h); an error if there are none. batch_invariant False: generated rows
        may take the prompt's arithmetic in large batches,
        which is faster on AMX; their bits then depend on the batch. context_length 0: the file's;
        rope_scaling "", none, linear, yarn; threads 0: cores, 16 at most, or fewer of them where
        LoopEngine.warm_up measures that to be faster; isa "": best that runs here, or likewise
        another one of equal bits; kv: keys and values as bf16 or int8 (exact: f32 always, and int8
        is an error); kv_bytes 0: sized for 128 sequences within a quarter of memory,
        which `engines` share.
        share_weights: "always" packs the weights into memory that other processes can map, "auto"
        where that costs nothing (in huge pages, on a machine with one NUMA node).
        shared_weights_fd: weights_fd of a process that has loaded the same file in the same way;
        they are mapped, and not packed. What does not fit, of another file or another version, is
        ignored. adapters: a request names one by its place among them, from 1. header and files:
        as for Gguf.join; then `path` is what errors name. Raises
        CoreError."""
    @property
    def weights_fd(self) -> int:
        """Memory of shared weights, sealed; owned by the model. -1: they are not shared."""
    @property
    def info(self) -> dict[str, Any]:
        """architecture, parameters, weight_bytes, layers, hidden, heads, kv_heads, head_dim,
        vocabulary, context_length, trained_context_length, rope_scaling, exact,
        quantize, isa, threads, few_rows and many_rows (how such steps run: isa, threads, and what
        was measured: isa, threads, least_ms), kv_type, kv_pages, kv_bytes, same_arithmetic (prompt
        and generated rows give equal bits), weights_mapped (those of a packed file, where they
        are), weights_shared, weights_reused (another process has packed them), weights_huge_pages
        (of shared ones; private ones ask for them too), adapters (of each: name, rank, parameters,
        bytes), load_seconds."""
    def logits(
        self, ids: Sequence[int], *, decode: bool = False, adapter: int = 0
    ) -> NDArray[np.float32]:
        """(position, vocabulary): what each position predicts, by the arithmetic of prompt rows
        or of generated rows. Beside any engine that runs on this model: one thread, pages of its
        own. Raises CoreError."""

class Region:
    """Shared memory of one edge-engine pair with its two bells (eventfds)."""
    @staticmethod
    def create(vocabulary: int) -> Region:
        """New memfd, sealed against resize, and two eventfds."""
    @staticmethod
    def attach(memory_fd: int, submission_bell_fd: int, token_bell_fd: int) -> Region:
        """Maps what create made in another process. The descriptors are duplicated: the caller
        closes its own. Raises CoreError if it is no sealed region of this version."""
    @property
    def fds(self) -> tuple[int, int, int]:
        """(memory, submission bell, token bell); owned by the Region."""
    @property
    def vocabulary(self) -> int: ...
    def stats(self) -> dict[str, int]:
        """StatsPage by field name, and engine_heartbeat_ns."""

class TraceReader:
    """A cursor in the trace ring of a region, from where the ring is now. For the edge's side."""
    def __init__(self, region: Region) -> None: ...
    def follow(self, until_ns: int) -> None:
        """The loop writes what it decides until its monotonic clock says so; 0: no more. Raises
        ValueError."""
    def read(self, records_max: int) -> tuple[int, bytes]:
        """(records that were overwritten before they were read, the next records). A record is
        struct "<q14i": nanoseconds of the monotonic clock, kind, slot (-1: the loop itself),
        generation, arguments. Raises ValueError."""

KERNEL_LIMITS: dict[str, int]
"""Bounds of core/bpf/maps.h by name."""

class KernelMap:
    """A map of the kernel by its descriptor, which stays the caller's. What the kernel refuses is
    an OSError; a key or value of other than these lengths a ValueError."""
    def __init__(self, fd: int, key_bytes: int, value_bytes: int) -> None: ...
    def lookup(self, key: bytes) -> bytes | None: ...
    def update(self, key: bytes, value: bytes) -> None:
        """Set or replace. In a full LRU map one that was not used for long goes."""
    def remove(self, key: bytes) -> bool:
        """False: there was none."""
    def read(self) -> tuple[bytes, bytes]:
        """All keys and all values, each one behind the other in the same order."""
    def clear(self) -> int:
        """Remove all; how many there were."""

def load_steering(entries: int) -> dict[str, int]:
    """Descriptors by name: the program and its maps. `entries`: of each LRU map. Raises OSError,
    ValueError."""

def load_connections(entries: int, packets: bool) -> dict[str, int]:
    """Descriptors by name: maps and programs. `packets`: for a kernel without the tracepoints of
    socket calls. Raises OSError, ValueError."""

def attach_tracepoint(program: int) -> int:
    """A descriptor that holds the attachment. Raises OSError."""

def attach_cgroup(program: int, cgroup: int, egress: bool) -> int:
    """Likewise, for the packets of a cgroup, an open folder of its file system. Raises OSError."""

def program_statistics(program: int) -> tuple[int, int]:
    """(ns spent, runs) since it was loaded; zeros while nobody has the kernel count. Raises
    OSError."""

def kernel_objects(
    programs: bool, prefix: str = "", groups: list[int] = ...
) -> list[tuple[int, int, str, int]]:
    """Programs, or maps, of the machine whose names begin so: (descriptor, which is the caller's to
    close, id, name, id of the types that its skeleton shares). Only those with such types; groups:
    with one of these. Raises OSError without CAP_SYS_ADMIN."""

def enable_statistics() -> int:
    """A descriptor: while it is open the kernel counts what programs cost. Raises OSError."""

class PrefixHasher:
    """Hashes prompts as the page caches of the engines with the same `secret` do."""
    def __init__(self, secret: int) -> None:
        """secret: 64 bits that no client can know."""
    def chain(
        self,
        ids: array[int] | NDArray[np.int32],
        *,
        tenant_low: int,
        tenant_high: int,
        adapter: int = 0,
        sparse_mode: int = 0,
    ) -> NDArray[np.uint64]:
        """(pages): one hash per whole page of the prompt, each over all tokens up to the page's
        end and over everything else that a page is found by; without the page of the last token,
        which is always computed. Raises ValueError beyond CONTEXT_TOKENS_MAX."""

class PrefixTable:
    """What another process's engine has in its page cache, and how busy it is, without asking it:
    read from memory that the engine keeps up to date. A hint: the engine may evict a page before
    the request is there."""
    @staticmethod
    def attach(fd: int) -> PrefixTable:
        """Maps LoopEngine.prefix_fd for reading. The descriptor is duplicated: the caller closes
        its own. Raises CoreError if it is no sealed prefix table of this version."""
    def match(self, chain: NDArray[np.uint64]) -> int:
        """Leading tokens of the prompt with this chain (PrefixHasher) that the engine would take
        from its cache now. Raises ValueError beyond PAGES_PER_SEQUENCE_MAX."""
    def load(self) -> dict[str, int]:
        """running, waiting (requests); prompt_tokens_left: of both, not computed yet, where what
        the cache has counts only from admission on; pages_total, pages_available (free or cached,
        and promised to nobody); prompt_row_ps: what the scheduler takes a prompt's token to cost.
        As of the end of the loop's last iteration with work."""

class LoopEngine:
    """The resident loop with its model. `run` is the loop; everything else may be called from other
    threads."""
    @staticmethod
    def with_model(
        model: Model,
        *,
        speculation: bool = True,
        prefix_secret: int = 0,
        measured: dict[str, Any] | None = None,
    ) -> LoopEngine:
        """speculation: guess tokens from what a request has said and check them in the same step,
        where that pays. The tokens are the same. prefix_secret: that of PrefixHasher; 0: a random
        one, which nobody else has. measured: as `measured` of an engine of an equal model on this
        machine told it, to measure nothing again; what this model cannot go by is passed over.
        Raises CoreError."""
    @staticmethod
    def with_script(
        script: Sequence[tuple[Sequence[int], Sequence[int]]],
        *,
        vocabulary: int,
        context_length: int = 8192,
        kv_pages: int = 4096,
        stop_token: int = 2,
        step_delay_us: int = 0,
        prefill_delay_us_per_token: int = 0,
        speculation: bool = False,
        prefix_secret: int = 0,
        adapters: int = 0,
    ) -> LoopEngine:
        """No model. A request whose prompt contains the first sequence of a pair (first match wins;
        an empty sequence matches all) is answered with the second, then stop_token; without a match
        the prompt is echoed. adapters: that requests may name; they change no answer."""
    def attach(self, region: Region) -> int:
        """Serve a region from the next step on; returns its edge index. Raises CoreError beyond
        EDGES_MAX."""
    @property
    def prefix_fd(self) -> int:
        """Memory of the engine's PrefixTable, for other processes; owned by the engine."""
    def detach(self, edge: int) -> None:
        """Cancel all of that edge's requests and forget the region; returns when the loop has done
        so."""
    def run(self) -> None:
        """Runs the loop on the calling thread (GIL released) until stop. Sleeps when there is no
        work."""
    def stop(self) -> None: ...
    def inject_faults(self, folder: str) -> None:
        """Only for tests, before a region is attached: files in the folder make the loop fail
        (docs/faults.md)."""
    def warm_up(self) -> None:
        """Runs some steps so that the first request runs at steady-state speed, and times them for
        step_cost, unless an engine before this one has. Before run."""
    @property
    def was_measured_before(self) -> bool:
        """It goes by the `measured` that it was given."""
    def measured(self) -> dict[str, Any]:
        """After warm_up, what it found of model and machine: bytes_per_s and row_ops_per_s (what
        all threads read, and multiply and add), few_rows and many_rows as in Model.info, and
        step_cost."""
    def stats(self) -> dict[str, int]: ...
    def step_cost(self) -> dict[str, int]:
        """What the scheduler takes a step to cost, in picoseconds: step_ps and, with prompt rows,
        prompt_step_ps; decode_row_ps and prompt_row_ps a row, decode_position_ps and
        prompt_position_ps for each position that a row attends to."""
    def audit(self) -> str:
        """Empty if page ownership is consistent, else what is wrong. For tests; only while the loop
        is idle."""

class BytePairs:
    """Byte-pair encoding of words of ASCII, as the library does it, and made in milliseconds."""
    def __init__(
        self,
        tokens: Sequence[str],
        merges: Sequence[str],
        characters: Sequence[str],
        *,
        whole: bool = False,
    ) -> None:
        """tokens: all different, each id its place. merges: "left right", by rank. characters: how
        the vocabulary writes each of the 256 bytes. whole: a word that is a token is that token,
        whatever the merges make of it. Raises CoreError for merges that are none, or of texts that
        are no tokens."""
    def encode(self, words: Sequence[str]) -> list[bytes | None]:
        """int32 ids of each word; None of one that is not ASCII, is longer than 64 bytes, or has a
        byte that no token says."""

class JsonCounts:
    """Counts of what JSON text has outside of its strings."""
    @property
    def quotes(self) -> int:
        """Two for each string."""
    @property
    def containers(self) -> int:
        """Objects and arrays."""
    @property
    def keys(self) -> int: ...
    @property
    def commas(self) -> int: ...
    @property
    def depth(self) -> int: ...
    @property
    def object_keys(self) -> int:
        """The most keys of one object, among those nested at most 64 deep."""

def json_counts(data: bytes) -> JsonCounts:
    """Count the parts of JSON text. Like the two below, it releases the interpreter's lock for long
    data."""

def ill_formed_utf8(data: bytes) -> int:
    """Position of the first sequence that is not UTF-8; -1 if there is none."""

def whole_characters(data: bytes) -> bytes:
    """The same JSON with U+FFFD in place of each escaped surrogate that is not one of a pair."""

class Vocabulary:
    """Byte strings of all tokens, for the text path. Special tokens have empty bytes and yield no
    text."""
    def __init__(self, tokens: Sequence[bytes]) -> None: ...
    def __len__(self) -> int: ...
    def decode(self, ids: Sequence[int]) -> bytes: ...

class Histogram:
    """Counts by bucket. Bucket i holds values up to edges[i], the last one those beyond all."""
    def __init__(self, edges: Sequence[float]) -> None:
        """edges ascend. Raises ValueError."""
    def observe(self, value: float) -> None: ...
    @property
    def edges(self) -> list[float]: ...
    @property
    def counts(self) -> list[int]: ...
    @property
    def sum(self) -> float: ...

class BlockFormat:
    """How an answer falls into text, thinking and calls of tools; core/text/blocks.h has the rules.
    Markers and keys are those of a ToolFormat and a ThinkingFormat (sublimate.model)."""

    def __init__(
        self,
        *,
        tool_names: Sequence[str] = (),
        openings: Sequence[str] = (),
        closing: str = "",
        name_end: str = "",
        id_opening: str = "",
        name_key: str = "name",
        arguments_key: str = "arguments",
        bare: bool = False,
        eager: bool = False,
        thinking_opening: str = "",
        thinking_closing: str = "",
        omit_thinking: bool = False,
        begins_in: str = "",
        marker_tokens: Sequence[tuple[int, str]] = (),
        lenient: bool = False,
        several: bool = True,
        lenient_markers: Sequence[tuple[str, str]] = (),
        string_parameters: Sequence[tuple[str, str]] = (),
    ) -> None:
        """tool_names: those that a call may name; without any there are no calls. eager: a call is
        shown as its arguments come, which then have to be constrained to valid ones; else once it
        is whole. omit_thinking: its blocks have a signature and no text. begins_in: "text" for a
        prefill, "thinking" if the prompt has opened it. marker_tokens: control tokens that are
        markers, as marker_tokens of sublimate.model.tool_formats gives them. lenient: calls in
        other spellings that end the answer are calls too, if not `several` only the first; with
        the opening and closing markers of other families (LENIENT_MARKERS there), and (tool,
        parameter) of those that are strings. Raises ValueError for markers and names that could
        not be found."""

def tool_id(message_id: str, call: int) -> str:
    """Id of the call with this number, from 0, in a message."""

def ping_frame() -> bytes:
    """A ping as a binary frame (proto/sublimate/v1/frames.proto)."""

def error_frame(type: str, message: str, request_id: str, error_code: str = "") -> bytes:
    """An error event as a binary frame; without an error code if that is empty. Raises ValueError
    if the texts are too long for a frame."""

class StreamEvent:
    """What one poll has for one request. Fields are plain; `data` is ready to send. A request that
    has nothing to say (all its text is held back or accumulates) has no event."""

    key: int
    """The caller's key from submit."""
    data: bytes
    """format "sse" and "frames": whole frames to write now (may be empty), or what of them a lent
    socket did not take. Others: nothing."""
    admitted: bool
    """True once, on the event that carries the admission (data then starts with
    message_start)."""
    finished: bool
    cached_tokens: int
    bucket_rows: int
    """Rows of the step bucket that admitted the request; 0 before."""
    output_tokens: int
    """Tokens so far that are billed: up to the stop string, the stop token included."""
    thinking_tokens: int
    """Of output_tokens: inside thinking, markers included."""
    stop_reason: str
    """When finished: end_turn, max_tokens, stop_sequence, tool_use (the turn ended and has calls),
    cancelled, refused, failed, scored; else ""."""
    refuse_reason: str
    """When stop_reason is refused: too_long, queue_full, malformed; else ""."""
    fail_reason: str
    """When stop_reason is failed: not_finite (logits), nothing_allowed (by the token mask); else
    ""."""
    stop_sequence: str | None
    text: str
    """format "text" without a block format, when finished: the whole text."""
    pieces: list[tuple[str, str, str]]
    """(kind, text, id), in order. format "blocks": of this poll. "text" with a block format: of the
    whole answer, when finished. A block is its content up to a stop: ("text", text, "") or
    ("thinking", text, ""), or ("tool_start", name, id) and then ("arguments", JSON, ""); then
    ("stop", signature of thinking, ""), or ("stop", "", "cut") of a call whose arguments the model
    did not end, so that the core closed them. No content is empty."""
    token_ids: list[int]
    """Ids of this poll, the stop token included. format "raw": all. Else those of a masked request
    while it is not free, a trigger included: after them the next mask is that of token
    `output_tokens`."""
    logprobs: list[tuple[float, list[tuple[int, float]]]]
    """If asked for: per token of this poll (chosen log-probability, [(id, log-probability)])."""
    logprob_ids: list[int]
    """Id of each of these tokens, the stop token included; whatever the format."""
    submitted_ns: int
    """Handed to the loop. This and the next five are on the monotonic clock, never decrease from
    one to the next, and are 0 where they were not reached."""
    admitted_ns: int
    """The step record with the admission was published."""
    first_token_ns: int
    """The step record with the first token."""
    last_record_ns: int
    """The latest step record of the request."""
    polled_ns: int
    """The poll met that record."""
    encoded_ns: int
    """Data and text of this event were ready."""
    first_sent_ns: int
    """The first bytes after the first token went to a lent socket; 0: not to one."""

class EdgeClient:
    """The edge's half of a region: slots, submission, cancel, and the text path. One thread
    only."""
    def __init__(
        self,
        region: Region,
        vocabulary: Vocabulary | None,
        gaps: Histogram | None = None,
        signature_key: bytes = b"",
    ) -> None:
        """gaps takes the seconds between polls that brought tokens, per stream. signature_key: of
        thinking blocks, as sign_thinking of sublimate.model.thinking has it."""
    def acquire(self, words: int) -> tuple[int, int, memoryview] | None:
        """(slot, generation, zeroed-header int32 view of the slot's whole ring memory), or
        None if no slot is free. The caller writes header fields (REQUEST_FIELDS), tokens and bias
        pairs into the view; version, slot, generation are already set. Zero is a value too: no
        logprobs is -1, no mask or trigger slot is -1, and the neutral top_p and repetition penalty
        are 1."""
    def submit(
        self,
        slot: int,
        generation: int,
        key: int,
        *,
        format: str,
        stop_strings: Sequence[str] = (),
        turn_ends: Sequence[str] = (),
        drops_space: bool = False,
        message_id: str = "",
        model: str = "",
        input_tokens: int = 0,
        chunked: bool = False,
        blocks: BlockFormat | None = None,
    ) -> None:
        """Hands the record to the loop and stamps submitted_ns. format: "sse" and "frames" (the
        Messages API's stream, as server-sent events or as binary frames), "blocks" (pieces),
        "text" (all at the end), "raw" (token ids, no text; the only one for score requests).
        input_tokens is for usage, 0: the record's prompt length. chunked: the frames of an event
        are one chunk of an HTTP/1.1 body. turn_ends: strings that end the turn as a stop token
        does; drops_space: a space that begins the answer is not shown. blocks: None, the answer is
        one text. After submit the
        view must not be written. Raises ValueError, and keeps the slot, if the slot is not held,
        the header does not fit it, the stop strings are too many, too long or empty, or a block
        format is given for "raw"; CoreError if the engine broke the ring."""
    def discard(self, slot: int, generation: int) -> None:
        """Gives an acquired slot back without submitting, or a scored one without reading. Raises
        ValueError if the slot is in no such state."""
    def cancel(self, slot: int, generation: int) -> None:
        """Idempotent; late or unknown generations are no-ops. The finished event still comes."""
    def lend(self, slot: int, generation: int, socket: int) -> bool:
        """Lends the descriptor of a framed stream's connected socket: from now on poll writes its
        frames there itself, and only what the caller must know becomes an event. Ends with unlend,
        cancel, the end of the stream (always the caller's to write), or a write that did not take
        everything: the rest is the event's data. The lender does not write meanwhile, and unlends
        before it closes. False: no such stream runs."""
    def unlend(self, slot: int, generation: int) -> None:
        """Idempotent."""
    def progress(self, slot: int, generation: int) -> tuple[int, int]:
        """(output tokens, monotonic ns of the last write to a lent socket) of a running request;
        zeros for any other."""
    def poll(self) -> list[StreamEvent]:
        """Drains the token ring; one event per touched request, in the order of first touch. Slots
        of finished requests are released, except format "raw" with FLAG_SCORE, whose results are
        read first (see scores), and those that a stop string ended, which the loop frees with its
        terminal row. Raises CoreError, for good, if the ring is corrupt (the engine broke): drop
        client and region."""
    def scores(self, slot: int, generation: int) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """(log-probability, arg-max) per prompt position of a finished score request; releases the
        slot."""
    def mask_words(self, mask_slot: int) -> NDArray[np.uint32]:
        """Ring memory of a mask slot: (ceil(vocabulary / 32)) words, bit 1 allows (or, in a trigger
        slot, is a trigger). Written only while the loop does not read it: before the submission,
        and between an event with token ids and the next publish. Raises ValueError."""
    def clear_mask(self, mask_slot: int) -> None:
        """Before the slot passes to another request. Raises ValueError."""
    def publish_mask(self, mask_slot: int, index: int) -> None:
        """The slot's words are the mask of the generated token `index`. Raises ValueError."""
    def publish_free(self, mask_slot: int, index: int) -> None:
        """From the generated token `index` on no mask is needed, until a token of the request's
        trigger slot is sampled, or for good without one. Raises ValueError."""
    def sleep_prepare(self) -> bool:
        """Announce that the caller will wait on the token bell. False: records are pending, poll
        again first."""
    def clear_bell(self) -> None:
        """Reset the token bell after it woke the caller: clear_bell, poll, then sleep_prepare until
        True."""
    @property
    def in_flight(self) -> int:
        """Requests handed to the loop whose slot is not free yet."""
    @property
    def slots_in_use(self) -> int:
        """in_flight and the acquired ones."""
    @property
    def stale_rows(self) -> int:
        """Rows of the engine that met no request; they are ignored."""
    @property
    def text_ns(self) -> int:
        """Time from records to frames, over all polls: the native share of streaming."""
    @property
    def text_tokens(self) -> int:
        """Tokens that were handled in that time."""
    @property
    def heard_ns(self) -> int:
        """Monotonic clock of the last poll that brought rows of a request; 0 before."""

def probe() -> dict[str, Any]:
    """CPU model, cores, instruction sets that run here (tested by CPUID and XCR0, AMX also by
    permission), best isa, cache sizes, memory bytes, huge pages."""

def group_limits(read: Callable[[str], str]) -> dict[str, Any]:
    """The least that this process's control group and those above it allow, in either version:
    memory_bytes (0: no limit), memory_free_bytes (left below a limit), cores (of CPU time; 0: no
    limit). `read` returns the text of a file, or an empty text."""

def group_folders(read: Callable[[str], str], controller: str) -> list[str]:
    """Folders of the same groups, nearest first, for a controller of version 1, or for version 2
    (an empty name)."""

def measure_limits(
    working_sets: Sequence[int], *, threads: int = 0, isa: str = ""
) -> dict[str, Any]:
    """What the machine gives at most, with one thread and with all (or `threads`), by the widest
    instruction set up to `isa`. isa; reads: working_set_bytes, threads, bytes_per_s,
    huge_pages_share; computes: name (fma_f32, dot_int8, tile_bf16, tile_bf16_loads, tile_int8),
    threads, ops_per_s (a multiply-add is two; 0: not on this machine). Seconds of all cores. Raises
    CoreError."""

def heap_allocations() -> int:
    """Test hook: allocations made by this process's C++ code since start on the loop's threads."""
