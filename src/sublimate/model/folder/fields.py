"""Values of config.json with the type and the range that they must have.

defines: Fields
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

from ...errors import ModelError

INTEGER_MAX = (1 << 31) - 1


class Fields:
    """An object of a JSON file. What is absent and what is null is the same."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self._where = where

    def error(self, name: str, reason: str) -> ModelError:
        """A refusal that names the field."""
        return ModelError(f"{self._where}: {name} {reason}.")

    def has(self, name: str) -> bool:
        """Whether it says anything of it."""
        return self._values.get(name) is not None

    def get(self, name: str) -> Any:
        """As it is, for a caller that looks at its type."""
        return self._values.get(name)

    def integer(
        self, name: str, default: int | None = None, low: int = 1, high: int = INTEGER_MAX
    ) -> int:
        """Raises ModelError, also if it is absent and there is no default, which is not looked
        at."""
        value = self._values.get(name)
        if value is None and default is not None:
            return default
        if value is None:
            raise self.error(name, "is missing")
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(name, f"must be a whole number, not {_shown(value)}")
        if not low <= value <= high:
            raise self.error(name, f"is {value}, outside {low} to {high}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Finite. Raises ModelError, also if it is absent and there is no default."""
        value = self._values.get(name)
        if value is None and default is not None:
            return default
        if value is None:
            raise self.error(name, "is missing")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(name, f"must be a number, not {_shown(value)}")
        if abs(value) > 1e30 or not math.isfinite(value):
            raise self.error(name, "is out of range")
        return float(value)

    def positive(self, name: str, default: float | None = None) -> float:
        """Above zero. Raises ModelError."""
        value = self.number(name, default)
        if value <= 0:
            raise self.error(name, "must be above zero")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """Raises ModelError."""
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(name, f"must be true or false, not {_shown(value)}")
        return value

    def text(self, name: str, default: str = "") -> str:
        """Raises ModelError."""
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.error(name, f"must be a text, not {_shown(value)}")
        return value

    def numbers(self, name: str, count: int) -> list[float]:
        """That many, each above zero. Raises ModelError."""
        values = self._values.get(name)
        if not isinstance(values, list) or len(cast(list[Any], values)) != count:
            raise self.error(name, f"must be a list of {count} numbers")
        listed = Fields({str(i): v for i, v in enumerate(cast(list[Any], values))}, self._where)
        return [listed.positive(str(index)) for index in range(count)]

    def texts(self, name: str) -> list[str]:
        """A list of texts; empty if it is absent. Raises ModelError."""
        values = self._values.get(name)
        if values is None:
            return []
        if not isinstance(values, list) or not all(
            isinstance(value, str) for value in cast(list[Any], values)
        ):
            raise self.error(name, "must be a list of texts")
        return cast(list[str], values)

    def within(self, name: str) -> Fields:
        """An object inside; empty if it is absent. Raises ModelError."""
        value = self._values.get(name)
        if value is None:
            return Fields({}, f"{self._where}: {name}")
        if not isinstance(value, dict):
            raise self.error(name, f"must be an object, not {_shown(value)}")
        return Fields(cast(dict[str, Any], value), f"{self._where}: {name}")

    def with_defaults(self, defaults: Mapping[str, Any]) -> Fields:
        """The same with what it does not name at all; null is a value."""
        return Fields({**defaults, **self._values}, self._where)


def _shown(value: object) -> str:
    return f"{type(value).__name__} {str(value)[:40]!r}"
