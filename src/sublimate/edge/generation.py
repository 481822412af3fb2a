"""What every surface makes of its body. All that is behind a surface works on this alone.

A surface is a Surface in its handlers' module: `read` decodes and checks a body of its API and
returns a Generation, the two makers of answers write what comes back in that API's shape.
`generate` (generate.py) does everything between. In `read`, which may run on a worker thread:

- turns: model/turns.py. A last assistant turn is continued; results are `tool` turns in the order
  of their calls (api/conversation.py makes them so).
- sampling: give the body's struct the fields of SamplingFields by inheritance, or make one, and
  call `checked_sampling` of the model. `token_limit` reads the limit of APIs that need none.
- profile: `choose_profile`, from the name in the body, if any.
- model_name: that of `server.models.resolve`, which raises the 404.
- raise ApiError("field", ...) by field_error(path, reason) for what the body has wrong.

defines: ToolChoice, ThinkingBudget, Generation, Prompt, Reader, Surface,
         RESERVE_SHARE, RESERVE_TOKENS_MIN, answer_reserve, thinking_limit
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ..config import Profile
from ..grammar.constraint import Constraint
from ..model.tool_formats import Tool
from ..model.turns import ToolList, Turn
from .sampling import Sampling

if TYPE_CHECKING:
    from .app import EdgeServer
    from .exchange import Exchange
    from .stream import Answer

ToolChoice = Literal["auto", "any", "tool", "none"]


class ThinkingBudget(msgspec.Struct, frozen=True):
    """The model may think before it answers."""

    tokens: int
    """What the client allows, less the answer's reserve: then the thinking is closed."""
    is_shown: bool = True
    """Otherwise the client gets its signature alone."""

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ValueError("a budget of thinking has at least one token")


RESERVE_SHARE = 4
RESERVE_TOKENS_MIN = 64
"""Of an answer's tokens a fourth, and at least so many, are not for thinking."""


def answer_reserve(tokens: int) -> int:
    """Of an answer of so many tokens, those that thinking leaves to what follows it."""
    return max(tokens // RESERVE_SHARE, RESERVE_TOKENS_MIN)


def thinking_limit(thinking: ThinkingBudget | None, tokens: int) -> int:
    """Tokens of thinking of an answer that has room for `tokens`. A model may think unasked; where
    the reserve is more than there is, it does not fill the answer with thinking either."""
    most = max(tokens - answer_reserve(tokens), tokens // RESERVE_SHARE, 1)
    return most if thinking is None else min(thinking.tokens, most)


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """One answer to make."""

    model_name: str
    """Under which it is answered; `server.models.of` finds the model by it."""
    turns: tuple[Turn, ...]
    sampling: Sampling
    profile: Profile
    stream: bool = False
    tools: tuple[Tool, ...] = ()
    """Told at the beginning, even if tool_choice is none: so the prefix stays."""
    tool_choice: ToolChoice = "auto"
    chosen_tool: str = ""
    """With tool_choice "tool": its name, one of callable_tools."""
    parallel_tools: bool = True
    """More than one call in an answer."""
    answer_schema: dict[str, Any] | None = None
    """JSON Schema of the answer's text."""
    answer_strict: bool = False
    """All of it has to be enforced, or the request is refused."""
    answer_path: str = "output_config.format.schema"
    """Where the request has it."""
    thinking: ThinkingBudget | None = None
    """None: off, for models that can switch."""
    template_variables: dict[str, Any] = {}
    """What else the chat template is given, by name."""
    raw_prompt: str | tuple[int, ...] = ""
    """Instead of turns: text as it is, whose control tokens are such, or token ids."""
    withdrawn_tools: frozenset[str] = frozenset()
    """Names of tools that were told and may not be called any more."""
    others: tuple[Generation, ...] = ()
    """More answers to the same request, in their order behind this one; without others of their
    own."""
    left_out: tuple[str, ...] = ()
    """What the request asks for and this server leaves out: path and value of each."""
    schema_paths: dict[str, str] = {}
    """By a tool's name: where its schema stands in the body, for errors."""
    made_schemas: frozenset[str] = frozenset()
    """Names of tools whose schema this server made. An error cannot name a place in such a schema,
    only the field that it was made from."""

    def __post_init__(self) -> None:
        """A surface checks its body before; what is wrong here is a bug of it."""
        if not self.turns and not self.tools and not self.raw_prompt:
            raise ValueError("a generation needs something to go on from")
        if self.raw_prompt and (self.turns or self.tools):
            raise ValueError("a raw prompt is all that the model sees")
        if (self.tool_choice == "tool") != bool(self.chosen_tool):
            raise ValueError("chosen_tool belongs to the choice of one tool")
        if self.chosen_tool and self.chosen_tool not in {t.name for t in self.callable_tools}:
            raise ValueError("the chosen tool is none of those told")
        if self.tool_choice in ("any", "tool") and not self.callable_tools:
            raise ValueError("there is no tool to choose")

    @property
    def callable_tools(self) -> tuple[Tool, ...]:
        """All tools that the conversation has told of, by name the last one told."""
        told = [tool for turn in self.turns for b in turn.blocks if isinstance(b, ToolList)
                for tool in b.tools]  # fmt: skip
        by_name = {tool.name: tool for tool in (*self.tools, *told)}
        return tuple(t for name, t in by_name.items() if name not in self.withdrawn_tools)


class Prompt(msgspec.Struct, frozen=True):
    """A generation whose conversation is token ids."""

    generation: Generation
    ids: array[int]
    """(prompt_tokens) int32"""
    ends_ns: tuple[int, int, int]
    """When parse, template and tokenise ended, on the monotonic clock (see timing.py)."""
    begins_in_thinking: bool = False
    """The rendered prompt ends with the opening of a thinking block."""
    constraint: Constraint | None = None
    """What its answer is held to."""
    others: tuple[Prompt, ...] = ()
    """Those of the generation's others; answers to one prompt share its ids."""
    text_version: int = 0
    """Of the model, as it was when the ids were made."""

    def __post_init__(self) -> None:
        if not len(self.ids):
            raise ValueError("a prompt has tokens")


Reader = Callable[["EdgeServer", "Exchange", bytes], Generation]
"""Makes a generation of a body. Raises ApiError."""


class Surface(msgspec.Struct, frozen=True):
    """One API for generating text."""

    read: Reader
    streamed: Callable[..., Answer]
    """With the arguments of Answer."""
    collected: Callable[..., Answer]
    identifier: str = "msg"
    """Kind of its answers' ids, as in msg_0123."""
    split: Callable[[Exchange, Sequence[Prompt]], Sequence[Exchange]] | None = None
    """Makes an exchange for each of several answers, and of them the answer to a request."""
    begun: Callable[[EdgeServer, Answer], None] | None = None
    """Told of each answer that the engine has taken."""
