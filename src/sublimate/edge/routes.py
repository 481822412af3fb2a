"""Which handler answers which path, matched on the parsed path alone.

defines: Handler, Routes
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from .errors import MESSAGES_SHAPE, ApiError, ErrorShape
from .exchange import BodySink, Exchange, Request

if TYPE_CHECKING:
    from .app import EdgeServer
    from .grpc.call import Method
    from .part import Part

Handler = Callable[["EdgeServer", Exchange], Awaitable[None] | None]
Methods = Mapping[str, Handler]
SinkMaker = Callable[["EdgeServer", Exchange], BodySink]
"""Called at the head of a request, after access. Raises ApiError."""
Retelling = Callable[[bool], Callable[[bytes], bytes]]
"""Makes what tells a stream in its other form: in binary frames (True) or in events. That is given
whole pieces of the one form, in order, and returns the other's."""

DOUBLED_PREFIX = "/v1/v1"
SURPLUS_PARTS_MAX = 4
"""Parts of a path that may stand before one that is known, for the advice to leave them out."""
BASES = ("v1", "api")
"""Ends of the base URLs of OpenAI's and Ollama's clients."""


class Routes:
    """Paths with the methods that they take. A part of a path in braces, as in /v1/models/{id},
    stands for any one part; a slash inside that part comes as %2F (see Request.segments).

    `replay_safe`: handlers of POST that change nothing and cost little, so that asking again does
    no harm. `retellings`: of handlers whose streams have two forms. `shapes`: how errors look on
    paths that begin so, known or not; elsewhere as the Messages API has them. `sinks`: handlers
    whose bodies go elsewhere than into memory. `begin` is called with each server that starts to
    listen. `of_first`: handlers that one edge of a server answers, which has the folders of the
    parts `with_folders`. `calls` makes the table of gRPC's methods by path, when the first call
    comes. Raises ValueError for a table that could never be served."""

    def __init__(
        self,
        table: Mapping[str, Methods],
        shapes: Mapping[str, ErrorShape] | None = None,
        begin: Callable[[EdgeServer], None] = lambda server: None,
        sinks: Mapping[Handler, SinkMaker] | None = None,
        calls: Callable[[], Mapping[str, Method]] = dict,
        replay_safe: Iterable[Handler] = (),
        retellings: Mapping[Handler, Retelling] | None = None,
        of_first: Iterable[Handler] = (),
        with_folders: Sequence[type[Part]] = (),
    ) -> None:
        for path, methods in table.items():
            if not path.startswith("/") or path.startswith(DOUBLED_PREFIX):
                raise ValueError(f"{path!r} is no path of this server")
            if not methods:
                raise ValueError(f"{path} takes no method")
        self.table = table
        self.begin = begin
        self.sinks = sinks or {}
        self._make_calls = calls
        self.replay_safe = frozenset(replay_safe)
        self.of_first = frozenset(of_first)
        self.with_folders = tuple(with_folders)
        self.retellings = retellings or {}
        self._shapes = tuple((shapes or {}).items())
        self._open = [path.split("/") for path in table if "{" in path]

    def with_paths(self, more: Mapping[str, Methods]) -> Routes:
        """All of these, and more. Raises ValueError for a path that is there already."""
        if taken := self.table.keys() & more.keys():
            raise ValueError(f"{min(taken)} is there already")
        return Routes(
            {**self.table, **more},
            dict(self._shapes),
            self.begin,
            self.sinks,
            self._make_calls,
            self.replay_safe,
            self.retellings,
            of_first=self.of_first,
            with_folders=self.with_folders,
        )

    @cached_property
    def calls(self) -> Mapping[str, Method]:
        """Of gRPC, by path: /package.Service/Method."""
        return self._make_calls()

    def find(self, request: Request) -> Handler:
        """Raises ApiError: 404 for an unknown path, 405 for a method that a path does not take."""
        path = request.path
        methods = self.table.get(path) or self._find_open(path.split("/"))
        if methods is None:
            raise self._not_found(path)
        method = "GET" if request.method == "HEAD" and "GET" in methods else request.method
        handler = methods.get(method)
        if handler is None:
            allowed = [*methods, *(["HEAD"] if "GET" in methods else [])]
            raise ApiError("method", allowed=", ".join(allowed))
        return handler

    def error_shape(self, path: str) -> ErrorShape:
        shape = self._shape_below(path)
        if shape is None and path not in self.table and (meant := self._meant(path)) is not None:
            shape = self._shape_below(meant[0])
        return shape or MESSAGES_SHAPE

    def _shape_below(self, path: str) -> ErrorShape | None:
        return next((shape for start, shape in self._shapes if path.startswith(start)), None)

    def _not_found(self, path: str) -> ApiError:
        meant = self._meant(path)
        if meant is None:
            return ApiError("not_found")
        right, advice = meant
        return ApiError("base_url", right=right, advice=advice)

    def _meant(self, path: str) -> tuple[str, str] | None:
        """The known path of one that a wrong base URL has led to, and what is wrong with that."""
        parts = [part for part in path.split("/") if part]
        # Below /v1 only a whole path is a sign of a wrong base URL; anything else is a wrong path.
        most = 1 if parts[:1] == ["v1"] else SURPLUS_PARTS_MAX
        for surplus in range(min(len(parts), most + 1)):
            before, rest = parts[:surplus], parts[surplus:]
            if (right := self._known(rest)) is not None:
                if not before:
                    return right, "remove the slash at its end"
                is_named = all(part in BASES for part in before)
                what = f"/{'/'.join(before)} from its end" if is_named else "what stands before it"
                return right, f"remove {what}"
            for base in BASES if before[:1] != ["v1"] else ():
                if (right := self._known([base, *rest])) is not None:
                    return right, f"end it in /{base}"
        return None

    def _known(self, parts: list[str]) -> str | None:
        """The path as it stands in the table, with names in braces."""
        path = "/".join(["", *parts])
        if path in self.table:
            return path
        return self._open_path(path.split("/"))

    def _find_open(self, parts: list[str]) -> Methods | None:
        path = self._open_path(parts)
        return None if path is None else self.table[path]

    def _open_path(self, parts: list[str]) -> str | None:
        for pattern in self._open:
            if len(pattern) == len(parts) and all(
                (known[:1] == "{" and part) or known == part
                for known, part in zip(pattern, parts, strict=True)
            ):
                return "/".join(pattern)
        return None
