"""Environment variables of Skyphos: one parser for all, and an error that names the variable and its value.

An empty or blank variable counts as not set.
"""

from __future__ import annotations

import difflib
import os
import re
import warnings
from collections.abc import Mapping

from ..errors import BadInput

__all__ = ["KNOWN", "flag", "text", "warn_of_typing_errors", "whole_number"]

_TRUE, _FALSE = ("1", "true", "on", "yes"), ("0", "false", "off", "no")

#: Every variable that Skyphos reads.
KNOWN = (
    "SKYPHOS_ADAPT",
    "SKYPHOS_DEBUG",
    "SKYPHOS_FAILURE_WORD",
    "SKYPHOS_LIBMPI",
    "SKYPHOS_LISTEN_FD",
    "SKYPHOS_LOCAL_RANK",
    "SKYPHOS_LOCAL_WORLD_SIZE",
    "SKYPHOS_PROFILE",
    "SKYPHOS_RANK",
    "SKYPHOS_RENDEZVOUS",
    "SKYPHOS_SHARED_MEMORY",
    "SKYPHOS_TAKEN",
    "SKYPHOS_THREADS",
    "SKYPHOS_TLS_AUTHORITY",
    "SKYPHOS_TLS_CERTIFICATE",
    "SKYPHOS_TLS_KEY",
    "SKYPHOS_TOKEN",
    "SKYPHOS_TOPOLOGY",
    "SKYPHOS_WORLD_SIZE",
)

# A name at least this similar (difflib) to a known one counts as a typing error; others may be a program's own.
_SIMILAR = 0.88


def text(name: str, environ: Mapping[str, str] | None = None) -> str | None:
    """The value of a variable without surrounding blanks; None if it is not set.

    Examples
    --------
    >>> from skyphos.inputs.variables import text
    >>> text("SKYPHOS_TOKEN", {"SKYPHOS_TOKEN": " "}) is None
    True
    """
    return (os.environ if environ is None else environ).get(name, "").strip() or None


def flag(name: str, environ: Mapping[str, str] | None = None) -> bool | None:
    """A variable as a boolean: 1, true, on, yes, or 0, false, off, no, in any case; None if it is not set.

    Raises
    ------
    BadInput
        If it has another value.

    Examples
    --------
    >>> from skyphos.inputs.variables import flag
    >>> flag("SKYPHOS_ADAPT", {"SKYPHOS_ADAPT": "Off"})
    False
    """
    value = text(name, environ)
    if value is None:
        return None
    if value.lower() not in _TRUE + _FALSE:
        raise BadInput(f"{name} must be 0 or 1 (also true, false, on, off, yes, no), not {value!r}")
    return value.lower() in _TRUE


def whole_number(name: str, environ: Mapping[str, str] | None = None) -> int | None:
    """A variable as a whole number in decimal digits; None if it is not set.

    Raises
    ------
    BadInput
        If it has another value; also for ``1_0``, which Python would parse as ten.

    Examples
    --------
    >>> from skyphos.inputs.variables import whole_number
    >>> whole_number("SKYPHOS_THREADS", {"SKYPHOS_THREADS": "4"})
    4
    """
    value = text(name, environ)
    return None if value is None else parse_whole(value, name)


def parse_whole(value: str, name: str) -> int:
    """A whole number in ASCII digits; errors name its source."""
    if not re.fullmatch(r"[+-]?[0-9]{1,30}", value.strip()):
        raise BadInput(f"{name} must be a whole number, not {value!r}")
    return int(value)


def warn_of_typing_errors(environ: Mapping[str, str] | None = None) -> None:
    """Warn of variables whose names are similar to a known one: they have no effect.

    Examples
    --------
    >>> import warnings
    >>> from skyphos.inputs.variables import warn_of_typing_errors
    >>> with warnings.catch_warnings(record=True) as heard:
    ...     warnings.simplefilter("always")
    ...     warn_of_typing_errors({"SKYPHOS_SHARED_MEMROY": "0"})
    >>> print(heard[0].message)
    SKYPHOS_SHARED_MEMROY has no effect: is SKYPHOS_SHARED_MEMORY meant?
    """
    for name in sorted(os.environ if environ is None else environ):
        if name.startswith("SKYPHOS_") and name not in KNOWN:
            meant = difflib.get_close_matches(name, KNOWN, 1, _SIMILAR)
            if meant:
                warnings.warn(f"{name} has no effect: is {meant[0]} meant?", stacklevel=3)
