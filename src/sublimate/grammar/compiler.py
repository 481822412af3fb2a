"""Requests to constraints: grammars compiled once per set of tools, cached, bounded in time and
memory.

Each tool is made enforceable by itself, so that one odd schema costs no other tool its grammar; a
tool whose grammar cannot be had may take any object. Time is that of the thread, so that load never
refuses a schema.

defines: StrictSchemaError, Wanted, Grammars
"""

from __future__ import annotations

import functools
import hashlib
import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ..model.thinking import ThinkingFormat
from ..model.tokenizer import Tokenizer
from ..model.tool_formats import Tool, ToolFormat
from . import lark
from .constraint import END, SLOW_SECONDS, Constraint, Phase
from .schema import (
    Enforceable,
    Relaxation,
    check_schema,
    enforceable,
    outline,
    without_patterns,
)
from .vocabulary import GrammarVocabulary

if TYPE_CHECKING:  # loaded when the first vocabulary is made: no start waits for it
    from llguidance import LLMatcher, LLParserLimits

LOG = logging.getLogger("sublimate.grammar")

SCHEMAS_MAX = 1024
"""Enforceable schemas that are kept."""
SCHEMAS_BYTES_MAX = 16 << 20
"""Of their JSON."""
CONSTRAINTS_MAX = 64
"""Constraints that are kept: a few grammars each."""
CONSTRAINTS_BYTES_MAX = 2 << 20
"""Of the JSON of what was asked; their grammars take about a hundred times as much memory."""
RELAXATIONS_LOGGED_MAX = 16
"""Lines of one schema."""
COMPILE_SECONDS_MAX = 0.1
"""What one tool's grammar may take: a slower one allows any object instead, from then on."""

RELAX_KEYWORD_SLOW = "time"
RELAX_KEYWORD_REFUSED = "schema"
RELAX_KEYWORD_TOGETHER = "tools"
RELAX_KEYWORD_STATES = "size"


class StrictSchemaError(Exception):
    """A strict tool, or the answer's schema, has what cannot be enforced."""

    def __init__(self, tool: str, relaxation: Relaxation) -> None:
        super().__init__(tool, relaxation)
        self.tool = tool
        """Empty: the answer's schema."""
        self.relaxation = relaxation


class _RefusedError(Exception):
    """The library takes a grammar's parts, and not the whole."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a request asks of its answer."""

    tools: tuple[Tool, ...] = ()
    """Those that may be called: of a choice of one tool, that one."""
    must_call: bool = False
    parallel: bool = True
    answer_schema: dict[str, Any] | None = None
    answer_strict: bool = False
    """All of that schema has to be enforced."""
    may_think: bool = False
    begins_in_thinking: bool = False
    """The prompt has opened it."""

    @property
    def is_any(self) -> bool:
        """Whether it asks anything of what follows the thinking."""
        return bool(self.tools) or self.answer_schema is not None


class Grammars:
    """All constraints of one model. From any thread."""

    def __init__(
        self, tokenizer: Tokenizer, tools: ToolFormat, thinking: ThinkingFormat | None
    ) -> None:
        self.relaxed: Counter[str] = Counter()
        """Keyword -> how often it was left out, once per schema."""
        self._tokenizer = tokenizer
        self._tools = tools
        self._thinking = thinking
        self._vocabulary: GrammarVocabulary | None = None
        self._schemas = _Cache(SCHEMAS_MAX, SCHEMAS_BYTES_MAX)
        self._constraints = _Cache(CONSTRAINTS_MAX, CONSTRAINTS_BYTES_MAX)
        self._lock = threading.Lock()

    @property
    def vocabulary(self) -> GrammarVocabulary:
        """Made at its first use: it takes a fifth of a second."""
        with self._lock:
            if self._vocabulary is None:
                thinking = self._thinking.markers if self._thinking else ()
                markers = (*self._tools.markers, *thinking)
                self._vocabulary = GrammarVocabulary(self._tokenizer, markers)
            return self._vocabulary

    def warm_up(self) -> None:
        """So that no request waits for the vocabulary."""
        LOG.debug("a vocabulary of %d tokens for grammars", self.vocabulary.count)

    def constraint(self, wanted: Wanted) -> Constraint | None:
        """None: any answer will do. Raises StrictSchemaError, and MalformedSchemaError of the
        answer's schema."""
        if not self._asks(wanted):
            return None
        return self._constraints.get(*_digest(wanted), lambda: self._build(wanted))

    def is_ready(self, wanted: Wanted) -> bool:
        """Whether `constraint` takes no time."""
        return not self._asks(wanted) or self._constraints.has(_digest(wanted)[0])

    def _asks(self, wanted: Wanted) -> bool:
        thinks = wanted.may_think or wanted.begins_in_thinking
        return wanted.is_any or (thinks and self._thinking is not None)

    def _replace(self, wanted: Wanted, broken: Constraint, relaxes: bool) -> Constraint | None:
        """In place of one whose grammar has reached the library's limits, which no other answer
        gets any more. See Constraint.replacement."""
        key = _digest(wanted)[0]
        self._constraints.remove(key, None if relaxes else broken)
        if relaxes:
            if wanted.answer_strict or any(tool.strict for tool in wanted.tools):
                return None
            asked = [tool.schema for tool in wanted.tools]
            asked += [wanted.answer_schema] if wanted.answer_schema is not None else []
            for schema in asked:
                self._relax(schema)
        return self.constraint(wanted)

    def _relax(self, schema: dict[str, Any]) -> None:
        """Keep a weaker form of a schema, without the texts that need so many states."""
        key, size_bytes = _digest(schema)
        found: Enforceable = self._schemas.get(key, size_bytes, lambda: enforceable(schema))
        light = without_patterns(found.schema)
        if not light.relaxations:
            whole = (Relaxation("", RELAX_KEYWORD_STATES),)
            light = Enforceable(outline(found.schema), whole)
        relaxations = tuple(dict.fromkeys((*found.relaxations, *light.relaxations)))
        self.relaxed.update(one.keyword for one in light.relaxations)
        self._schemas.put(key, size_bytes, Enforceable(light.schema, relaxations))

    # ---- schemas -------------------------------------------------------------------------------
    def _enforced(self, tool: str, schema: dict[str, Any], strict: bool) -> Enforceable:
        found = self._schemas.get(*_digest(schema), lambda: self._try(tool, schema))
        if strict and found.relaxations:
            # Another client's answers may have relaxed it since it was tried.
            found = self._try(tool, schema)
        if strict and found.relaxations:
            raise StrictSchemaError(tool, found.relaxations[0])
        return found

    def _try(self, tool: str, schema: dict[str, Any]) -> Enforceable:
        """Alone, so that its cost is known."""
        self.warm_up()  # or the first schema would be too slow, for as long as it is kept
        found = enforceable(schema)
        begin_seconds = time.thread_time()
        main = lark.document(found.schema, self._tools)
        grammar = self._compiled(lark.alone(main))
        keyword = "" if grammar and self._begins(grammar) else RELAX_KEYWORD_REFUSED
        if time.thread_time() - begin_seconds > COMPILE_SECONDS_MAX:
            keyword = RELAX_KEYWORD_SLOW
        if keyword:
            relaxations = (*found.relaxations, Relaxation("", keyword))
            found = Enforceable(outline(found.schema), relaxations)
        self.relaxed.update(relaxation.keyword for relaxation in found.relaxations)
        of = tool or "the answer's schema"
        for relaxation in found.relaxations[:RELAXATIONS_LOGGED_MAX]:
            LOG.info("not enforced: %s of %s", relaxation.place, of)
        if (more := len(found.relaxations) - RELAXATIONS_LOGGED_MAX) > 0:
            LOG.info("not enforced: %d more of %s", more, of)
        return found

    def _begins(self, grammar: LLMatcher) -> bool:
        """Whether its first mask can be made: some grammars fail only there."""
        probe = grammar.deep_copy()
        words = self.vocabulary.words([])
        probe.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        return not probe.is_error() and bool(words.any())

    # ---- phases --------------------------------------------------------------------------------
    def _build(self, wanted: Wanted) -> Constraint:
        if wanted.answer_schema is not None:
            check_schema(wanted.answer_schema)
        found = {
            tool.name: self._enforced(tool.name, tool.schema, tool.strict) for tool in wanted.tools
        }
        arguments = {name: one.schema for name, one in found.items()}
        answer = wanted.answer_schema
        if answer is not None:
            found[""] = self._enforced("", answer, wanted.answer_strict)
            answer = found[""].schema
        relaxed = [(tool, place) for tool, one in found.items() for place in one.relaxations]
        try:
            constraint = self._phases(wanted, arguments, answer)
        except _RefusedError:
            # Too large together, though not alone.
            self.relaxed[RELAX_KEYWORD_TOGETHER] += 1
            LOG.info("not enforced together: the schemas of %d tools", len(arguments))
            outlines = {name: outline(schema) for name, schema in arguments.items()}
            constraint = self._phases(wanted, outlines, None if answer is None else outline(answer))
            relaxed = [(tool, Relaxation("", RELAX_KEYWORD_TOGETHER)) for tool in found]
        replacement = functools.partial(self._replace, wanted)
        return msgspec.structs.replace(constraint, relaxed=tuple(relaxed), replacement=replacement)

    def _phases(
        self, wanted: Wanted, arguments: lark.Arguments, answer: dict[str, Any] | None
    ) -> Constraint:
        several = wanted.parallel and self._tools.parallel
        if wanted.must_call or answer is not None:
            phases = self._held(wanted, self._main(wanted, arguments, answer, several))
        else:
            phases = self._free(wanted, arguments, several)
        first = phases[0].grammar if phases[0].kind != "free" else None
        closing = self._closing() if any(phase.thinks for phase in phases) else ()
        return Constraint(tuple(phases), self.vocabulary, self._is_slow(first), closing)

    def _closing(self) -> tuple[int, ...]:
        thinking, tokenizer = self._thinking, self._tokenizer
        if thinking is None:
            raise ValueError("a model that does not think has no end of it")
        marker = tokenizer.special.get(thinking.closing)
        if marker is None:
            return tuple(tokenizer.encode(f"\n{thinking.closing}"))
        return (*tokenizer.encode("\n"), marker)

    def _is_slow(self, grammar: LLMatcher | None) -> bool:
        if grammar is None:
            return False
        words = self.vocabulary.words([])
        begin_seconds = time.perf_counter()
        grammar.deep_copy().unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        return time.perf_counter() - begin_seconds > SLOW_SECONDS

    def _main(
        self, wanted: Wanted, arguments: lark.Arguments, answer: dict[str, Any] | None,
        several: bool,
    ) -> str:  # fmt: skip
        """Of an answer that is calls, a document, or either: rule `main`."""
        calls = lark.forced_calls(self._tools, arguments, several, "calls") if arguments else ""
        if wanted.must_call or answer is None:
            return f"main: calls\n{calls}"
        whole = lark.document(answer, self._tools, "document")
        return f"main: document{' | calls' if arguments else ''}\n{whole}{calls}"

    def _held(self, wanted: Wanted, main: str) -> Sequence[Phase]:
        thinking = self._thinking
        if thinking is None or not (wanted.may_think or wanted.begins_in_thinking):
            return [Phase(kind="held", grammar=self._need(lark.alone(main)))]
        closing = thinking.closing.encode()
        thought = Phase(
            kind="free",
            thinks=True,
            markers=(closing,),
            grammar=self._need(lark.after_thinking(thinking.closing, main)),
        )
        if wanted.begins_in_thinking:
            return [thought]
        begin = self._need(lark.thinking_or(thinking.opening, main))
        opening = thinking.opening.encode()
        return [Phase(kind="held", grammar=begin, thinking_opening=opening, thinking=1), thought]

    def _free(self, wanted: Wanted, arguments: lark.Arguments, several: bool) -> Sequence[Phase]:
        """Thinking, if the answer may begin with it, then something that is none; a call without an
        opening, if there are such; text and calls in turn."""
        tools, thinking = self._tools, self._thinking
        is_bare = tools.bare and bool(arguments)
        begins = thinking is not None and wanted.begins_in_thinking
        may = thinking is not None and wanted.may_think and not begins and not is_bare
        thinks = begins or may
        text = may + thinks + (is_bare or thinks)
        """Index of the last phase; before it one that says something, if there is need of it."""
        openings = tuple(opening.encode() for opening in tools.openings)
        phases: list[Phase] = []
        if may and thinking is not None:
            opening = thinking.opening.encode()
            phases.append(
                Phase(kind="choice", beginnings=(opening,), otherwise=text,
                      thinking_opening=opening, thinking=1)
            )  # fmt: skip
        if thinks and thinking is not None:
            closing = thinking.closing.encode()
            phases.append(Phase(kind="free", thinks=True, markers=(closing,), then=text - 1))
        if is_bare:
            grammar = self._need(lark.bare_call_or_text(tools, arguments))
            beginnings = (b"{", *openings)
            phases.append(
                Phase(kind="choice", grammar=grammar, beginnings=beginnings, otherwise=text,
                      must_speak=thinks)
            )  # fmt: skip
        elif thinks:
            phases.append(Phase(kind="choice", must_speak=True, otherwise=text))
        if not arguments:
            return [*phases, Phase(kind="free")]
        grammar = self._need(lark.call_in_text(tools, arguments, several))
        then = text if several and not tools.after_calls else END
        return [*phases, Phase(kind="free", grammar=grammar, markers=openings, then=then)]

    # ---- compiling -----------------------------------------------------------------------------
    def _need(self, grammar: str) -> LLMatcher:
        """Of schemas that were tried."""
        matcher = self._compiled(grammar)
        if matcher is None:
            raise _RefusedError
        return matcher

    def _compiled(self, grammar: str) -> LLMatcher | None:
        from llguidance import LLMatcher

        matcher = LLMatcher(self.vocabulary.library, grammar, log_level=0, limits=_limits())
        if not matcher.is_error():
            return matcher
        LOG.debug("a grammar was refused: %s", matcher.get_error())
        return None


class _Cache:
    """Of what is used most recently."""

    def __init__(self, entries_max: int, bytes_max: int) -> None:
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._held: OrderedDict[bytes, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def has(self, key: bytes) -> bool:
        return key in self._held

    def get(self, key: bytes, size_bytes: int, make: Callable[[], Any]) -> Any:
        """What `make` made of the key; two threads may make it at once. Nothing is kept of b""."""
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key][0]
        made = make()
        self.put(key, size_bytes, made)
        return made

    def put(self, key: bytes, size_bytes: int, made: Any) -> None:
        if not key:
            return
        with self._lock:
            self._bytes += size_bytes - self._held.pop(key, (None, 0))[1]
            self._held[key] = made, size_bytes
            while len(self._held) > self._entries_max or (
                self._bytes > self._bytes_max and len(self._held) > 1
            ):
                self._bytes -= self._held.popitem(last=False)[1][1]

    def remove(self, key: bytes, made: Any = None) -> None:
        """Forget what is kept under a key. made: only if it is that value."""
        with self._lock:
            if key in self._held and (made is None or made is self._held[key][0]):
                self._bytes -= self._held.pop(key)[1]


@functools.cache
def _limits() -> LLParserLimits:
    """Of the library: some tens of milliseconds for a mask, some tens of MiB for a grammar."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_lexer_states=20_000,
        max_grammar_size=200_000,
        initial_lexer_fuel=500_000,
        step_lexer_fuel=100_000,
        step_max_items=50_000,
        verbose_errors=False,
    )


def _digest(value: Any) -> tuple[bytes, int]:
    """(key, bytes of its JSON). No key for what is nested deeper than any body of a request."""
    try:
        text = msgspec.json.encode(value)
    except RecursionError:
        return b"", 0
    return hashlib.blake2b(text, digest_size=16).digest(), len(text)
