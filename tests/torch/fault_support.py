"""A function that the tests of failing hooks share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def said_by(call: Callable[[], Any]) -> str:
    """The type and text of a call's error, or "nothing"."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"
