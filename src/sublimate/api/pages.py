"""Lists by pages, as the vendor's API has them: after_id, before_id, limit.

defines: page_of, page_body
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs

from ..edge import limits
from ..edge.errors import field_error


def page_of(
    identifiers: Sequence[str], query: str, *, after_name: str = "after_id"
) -> tuple[Sequence[str], bool]:
    """(the ids of the page that a query asks for, whether there are more that way). Raises
    ApiError."""
    asked = parse_qs(query)
    first, last = 0, len(identifiers)
    if after := asked.get(after_name):
        first = _place(identifiers, after[-1], after_name) + 1
    if before := asked.get("before_id"):
        last = _place(identifiers, before[-1], "before_id")
    limit = _limit(asked.get("limit", [str(limits.PAGE_LIMIT_DEFAULT)])[-1])
    chosen = identifiers[first:last]
    # Before an id, the page nearest to it.
    shown = chosen[-limit:] if "before_id" in asked and after_name not in asked else chosen[:limit]
    return shown, len(shown) < len(chosen)


def page_body(identifiers: Sequence[str], entries: list[Any], has_more: bool) -> dict[str, Any]:
    """A page as the vendor has it, of entries with these ids."""
    return {
        "data": entries,
        "has_more": has_more,
        "first_id": identifiers[0] if identifiers else None,
        "last_id": identifiers[-1] if identifiers else None,
    }


def _place(identifiers: Sequence[str], identifier: str, field: str) -> int:
    if identifier not in identifiers:
        raise field_error(field, "not an id of this list")
    return identifiers.index(identifier)


def _limit(text: str) -> int:
    limit = int(text) if text.isascii() and text.isdigit() and len(text) <= 4 else 0
    if not 1 <= limit <= limits.PAGE_LIMIT_MAX:
        raise field_error("limit", f"expected an integer from 1 to {limits.PAGE_LIMIT_MAX}")
    return limit
