"""Bytes, rates, seconds and counts as short text with a unit."""

from __future__ import annotations

import math

__all__ = ["fine_seconds", "human_bytes", "human_ranks", "human_seconds"]


def human_bytes(count: float) -> str:
    """Return a number of bytes with three digits and a decimal unit.

    Examples
    --------
    >>> from skyphos.text.quantities import human_bytes
    >>> human_bytes(0), human_bytes(1536), human_bytes(3_400_000)
    ('0 B', '1.54 kB', '3.40 MB')
    """
    power = min(4, int(math.log(count, 1000))) if count >= 1 else 0
    unit = ("B", "kB", "MB", "GB", "TB")[power]
    if power == 0:
        return f"{count:.0f} B"
    number = count / 1000**power
    digits = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:.{digits}f} {unit}"


def human_seconds(seconds: float) -> str:
    """Return a time in milliseconds or seconds.

    Examples
    --------
    >>> from skyphos.text.quantities import human_seconds
    >>> human_seconds(0.00042), human_seconds(0.0123), human_seconds(0.25), human_seconds(75)
    ('0.42 ms', '12.3 ms', '250 ms', '75.0 s')
    """
    if seconds < 0.09995:
        return f"{seconds * 1e3:.{2 if seconds < 0.009995 else 1}f} ms"
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.1f} s" if seconds >= 10 else f"{seconds:.2f} s"


def fine_seconds(seconds: float) -> str:
    """Return a time like :func:`human_seconds`, with nanoseconds and microseconds too.

    Examples
    --------
    >>> from skyphos.text.quantities import fine_seconds
    >>> fine_seconds(2.5e-9), fine_seconds(4.2e-5), fine_seconds(0.25)
    ('2.50 ns', '42.0 µs', '250 ms')
    """
    if seconds == 0:
        return "≈ 0"
    for unit, scale in (("ns", 1e-9), ("µs", 1e-6)):
        if seconds < 1e3 * scale:
            number = seconds / scale
            return f"{number:.{2 if number < 10 else 1 if number < 100 else 0}f} {unit}"
    return human_seconds(seconds)


def human_ranks(count: int) -> str:
    """Return a number of ranks.

    Examples
    --------
    >>> from skyphos.text.quantities import human_ranks
    >>> human_ranks(1), human_ranks(4096)
    ('1 rank', '4,096 ranks')
    """
    return f"{count:,} rank{'' if count == 1 else 's'}"
