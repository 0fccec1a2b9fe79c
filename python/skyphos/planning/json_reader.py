"""Reader of JSON files with unknown content; errors name the file and the position in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import BadInput
from .planner import is_number, short

__all__ = ["JsonReader"]


class JsonReader:
    """Reads values of a file's content; errors name the file and the position in it."""

    def __init__(self, found: Any, name: str, where: str = "") -> None:
        self._found, self._name, self._where = found, name, where

    def fail(self, key: str | int | None, problem: str) -> Any:
        raise BadInput(f"{self._name}: {self._at(key)} {problem}: probe again, or mend the file")

    def _at(self, key: str | int | None) -> str:
        if key is None:
            return self._where or "the file"
        return f"{self._where}[{key}]" if isinstance(key, int) else f"{self._where}.{key}".lstrip(".")

    def _get(self, key: str | int | None, sound: Callable[[Any], bool], expected: str) -> Any:
        value = self._found
        if key is not None:
            if isinstance(key, str) and not isinstance(value, dict):
                self.fail(None, "must be an object with names")
            if isinstance(key, str) and key not in value:
                self.fail(key, "is missing")
            value = value[key]
        if not sound(value):
            self.fail(key, f"must be {expected}, not {short(value)}")
        return value

    def names(self) -> list[str]:
        return list(self._get(None, lambda v: isinstance(v, dict), "an object with names"))

    def text(self, key: str) -> str:
        return str(self._get(key, lambda v: isinstance(v, str), "a text"))

    def truth(self, key: str) -> bool:
        return bool(self._get(key, lambda v: isinstance(v, bool), "true or false"))

    def number(self, key: str | int) -> float:
        return float(self._get(key, _is_number, "a number of at least 0"))

    def whole(self, key: str | int) -> int:
        return int(self._get(key, lambda v: _is_number(v) and v == int(v), "a whole number of at least 0"))

    def part(self, key: str | int) -> JsonReader:
        value = self._get(key, lambda v: isinstance(v, dict | list), "a part with names or items")
        return JsonReader(value, self._name, self._at(key))

    def parts(self, key: str) -> list[JsonReader]:
        items = self._get(key, lambda v: isinstance(v, list), "a list")
        return [JsonReader(item, self._name, f"{self._at(key)}[{k}]") for k, item in enumerate(items)]

    def wholes(self, key: str | None) -> list[int]:
        """A list of whole numbers: this value itself, or its item ``key``."""
        items = self._get(key, lambda v: isinstance(v, list), "a list")
        return [JsonReader(items, self._name, self._at(key)).whole(k) for k in range(len(items))]

    def matrix(self, key: str, size: int) -> npt.NDArray[np.float64]:
        rows = self._get(key, lambda v: isinstance(v, list) and len(v) == size, f"a list of {size} rows")
        matrix = np.full((size, size), np.nan)
        for i, row in enumerate(rows):
            if not isinstance(row, list) or len(row) != size:
                self.fail(f"{key}[{i}]", f"must be a list of {size} numbers")
            for j, value in enumerate(row):
                if value is not None and not _is_number(value):
                    self.fail(f"{key}[{i}][{j}]", f"must be a number of at least 0 or null, not {short(value)}")
                matrix[i, j] = np.nan if value is None else value
        return matrix


def _is_number(value: Any) -> bool:
    return is_number(value) and value >= 0
