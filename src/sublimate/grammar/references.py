"""References inside a JSON schema: RFC 6901 pointers, anchors and identifiers.

Only what the document itself holds is found; nothing is fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast
from urllib.parse import unquote, urljoin

import msgspec

IDENTIFIERS = ("$id", "id")
"""The second is that of the fourth draft."""
ANCHORS = ("$anchor", "$dynamicAnchor")
Children = Callable[[dict[str, Any]], Iterator[tuple[Any, str]]]
"""(schema, its place in dots) of the schemas directly inside of one."""


class Target(msgspec.Struct, frozen=True):
    """A schema that a reference names."""

    schema: Any
    place: str
    """Its path from the root, with dots."""
    base: str
    """Identifier that the references inside are relative to."""


class References:
    """The references of one document."""

    def __init__(self, root: Mapping[str, Any], children: Children) -> None:
        self._resources: dict[str, Target] = {}
        """Key: the identifier without its fragment."""
        self._anchors: dict[tuple[str, str], list[Target]] = {}
        """(identifier, name) -> all schemas with that anchor."""
        self._children = children
        whole = Target(root, "", base_of(root, ""))
        self._resources[""] = self._resources[whole.base] = whole
        self._index(whole)

    def _index(self, whole: Target) -> None:
        waiting = [whole]
        while waiting:
            target = waiting.pop()
            schema, base = target.schema, target.base
            if not isinstance(schema, dict):
                continue
            node = cast(dict[str, Any], schema)
            self._resources.setdefault(base, target)
            names = [node[key] for key in ANCHORS if isinstance(node.get(key), str)]
            for key in IDENTIFIERS:
                identifier = node.get(key)
                # Up to the seventh draft an identifier could be an anchor.
                if isinstance(identifier, str) and identifier.startswith("#"):
                    names.append(identifier[1:])
            for name in dict.fromkeys(names):
                self._anchors.setdefault((base, name), []).append(target)
            for child, name in self._children(node):
                place = f"{target.place}.{name}" if target.place else name
                waiting.append(Target(child, place, base_of(child, base)))

    def find(self, reference: Any, base: str) -> Target | None:
        """What a reference names that stands in a schema of this base."""
        if not isinstance(reference, str):
            return None
        found = self._find(_joined(base, reference))
        if found is None and reference.startswith("#"):
            return self._find(reference)  # authors often mean the whole document
        return found

    def _find(self, address: str) -> Target | None:
        identifier, _, fragment = address.partition("#")
        resource = self._resources.get(identifier)
        if resource is None:
            return None
        if fragment and not fragment.startswith("/"):
            holders = self._anchors.get((resource.base, unquote(fragment)), ())
            return next(iter(holders), None)
        return _at(resource, unquote(fragment)) or _at(resource, fragment)

    def find_dynamic(self, reference: Any, base: str) -> Target | None:
        """What a `$dynamicRef` names, if only one schema has its anchor."""
        found = self.find(reference, base)
        name = unquote(str(reference).partition("#")[2])
        holders = [one for (_, held), several in self._anchors.items() if held == name
                   for one in several]  # fmt: skip
        return found if len(holders) == 1 else None


def base_of(schema: Any, base: str) -> str:
    """The base inside of a schema that stands where the base is this."""
    if not isinstance(schema, dict):
        return base
    for key in IDENTIFIERS:
        identifier = cast(dict[str, Any], schema).get(key)
        if isinstance(identifier, str) and identifier and not identifier.startswith("#"):
            return _joined(base, identifier).partition("#")[0]
    return base


def _joined(base: str, reference: str) -> str:
    if reference.startswith("#"):
        return base + reference  # of any scheme
    try:
        return urljoin(base, reference)
    except ValueError:  # a malformed address
        return reference


def _at(target: Target, pointer: str) -> Target | None:
    """What a JSON pointer (RFC 6901) names inside of a schema."""
    at, place, base = target.schema, target.place, target.base
    # By RFC 6901 "#/" is the member ""; authors mean the whole document by it.
    parts = [] if pointer in ("", "/") else pointer[1:].split("/")
    for part in parts:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(at, dict) and name in at:
            at = cast(dict[str, Any], at)[name]
        elif isinstance(at, list) and name.isdecimal() and name.isascii():
            items = cast(list[Any], at)
            if int(name) >= len(items) or (name != "0" and name.startswith("0")):
                return None
            at = items[int(name)]
        else:
            return None
        place = f"{place}.{name}" if place else name
        base = base_of(at, base)
    return Target(at, place, base)
