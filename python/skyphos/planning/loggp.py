"""LogGP parameters and the efficient size of a message, fitted to measured times.

LogGP (Alexandrov, Ionescu, Schauser, Scheiman 1997): a message of s bytes takes o_s + L + (s - 1) G + o_r, and a
processor can start the next one g later. The half-rate size is Hockney's n_1/2, which *Kylix* (Fig. 2) calls the
minimum efficient packet: smaller messages get less than half of the network's rate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

__all__ = ["LogGP", "fit_line", "half_rate_bytes", "incast_share"]


@dataclass(frozen=True)
class LogGP:
    """The model's parameters.

    Attributes
    ----------
    L_s : float
        Latency of a small message in seconds, without the overheads of the processors.
    o_s_s, o_r_s : float
        Overheads of the sending and the receiving processor for a small message, in seconds.
    g_s : float
        Gap between two small messages of a stream, in seconds.
    G_s : float
        Time per byte in a stream of large messages, in seconds.
    """

    L_s: float
    o_s_s: float
    o_r_s: float
    g_s: float
    G_s: float


def fit_line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Intercept and slope, neither below 0, of the line with the least error relative to ``y``.

    Examples
    --------
    >>> from skyphos.planning.loggp import fit_line
    >>> [round(number, 6) for number in fit_line([0, 10, 20], [1, 3, 5])]
    [1.0, 0.2]
    """
    a, b = np.asarray(x, float), np.asarray(y, float)
    weights = 1.0 / np.maximum(b, 1e-12)
    slope, start = np.polyfit(a, b, 1, w=weights)
    if slope < 0:
        return float(b.mean()), 0.0
    if start < 0:
        return 0.0, float((weights * a) @ (weights * b) / ((weights * a) @ (weights * a)))
    return float(start), float(slope)


def half_rate_bytes(sizes: Sequence[float], seconds: Sequence[float], stream_rate: float = math.inf) -> float:
    """The smallest size that reaches half of the best rate, interpolated linearly in log-log.

    Parameters
    ----------
    sizes, seconds : sequences of float
        Sizes in bytes, ascending, and the time of a message of each size.
    stream_rate : float
        Rate of a stream in bytes a second, an upper bound of the best rate. A single message may be faster, because
        traffic shapers and buffers let some bytes pass at once.

    Examples
    --------
    >>> from skyphos.planning.loggp import half_rate_bytes
    >>> round(half_rate_bytes([100, 1000, 10_000, 100_000], [1e-4, 1.09e-4, 2e-4, 1.09e-3]))  # 0.1 ms and 10 ns a byte
    8896
    """
    rates = [size / time for size, time in zip(sizes, seconds, strict=True)]
    half = min(max(rates), stream_rate) / 2
    for (size, rate), (larger, faster) in pairwise(zip(sizes, rates, strict=True)):
        if rate < half <= faster:
            return float(size * (larger / size) ** (math.log(half / rate) / math.log(faster / rate)))
    return float(sizes[0])


def incast_share(senders: Sequence[float], rates: Sequence[float]) -> float:
    """Share by which a transfer takes longer for each further sender, from the rates of k senders together.

    The slope s of rate(1) / rate(k) = 1 + s (k - 1), not below 0.

    Examples
    --------
    >>> from skyphos.planning.loggp import incast_share
    >>> round(incast_share([1, 2, 4], [100.0, 98.0, 94.3]), 3)
    0.02
    """
    k = np.asarray(senders, float) - 1.0
    longer = rates[0] / np.maximum(np.asarray(rates, float), 1e-9) - 1.0
    return float(max(0.0, (k @ longer) / (k @ k))) if k.any() else 0.0
