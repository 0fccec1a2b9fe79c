"""Lateness of a butterfly's ranks after TCP time-outs, which are drawn at random from those measured in the lab.

Time-outs are rare and long, unlike any distribution that the simulator offers. So they are added to its results by
propagating lateness: a rank ends a layer when the last of its neighbours' messages has arrived,

    late(i) = max over j of late(j) + drawn(j -> i),        drawn(i -> i) = 0,

down through all layers and up again. This assumes that the rest of the call takes as long as before; a time-out of
200 ms or more is longer than any layer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

RECORD = Path(__file__).resolve().parents[2] / "docs" / "figures" / "incast.json"


def measured() -> list[dict[str, Any]]:
    """The measurements: one setting for each port buffer and TCP variant."""
    return list(json.loads(RECORD.read_text())["settings"])


def pool(setting: dict[str, Any], senders: int) -> Array:
    """Seconds by which messages were late, at the measured number of flows nearest to ``senders``."""
    point = min(setting["all_to_all"], key=lambda p: abs(math.log(p["flows"] / senders)))
    late = np.zeros(point["messages"])
    late[: len(point["late_s"])] = point["late_s"]
    return late


def pass_layer(late: Array, axis: int, pool: Array, rng: np.random.Generator) -> Array:
    """Ranks' lateness after a layer whose neighbours are along an axis."""
    among = np.moveaxis(late, axis, -1)
    degree = among.shape[-1]
    drawn = rng.choice(pool, (*among.shape, degree))
    own = np.arange(degree)
    drawn[..., own, own] = 0.0
    # The largest over senders j, for each receiver i.
    return np.moveaxis((among[..., None, :] + drawn).max(axis=-1), -1, axis)


def reduce_s(degrees: Sequence[int], setting: dict[str, Any], reductions: int, seed: int = 1) -> list[float]:
    """Seconds by which time-outs prolong a reduction, for each of ``reductions`` draws."""
    rng = np.random.default_rng(seed)
    pools = [pool(setting, degree - 1) for degree in degrees]
    found = []
    for _ in range(reductions):
        late = np.zeros(tuple(degrees))
        for axis in (*range(len(degrees)), *reversed(range(len(degrees)))):
            late = pass_layer(late, axis, pools[axis], rng)
        found.append(float(late.max()))
    return found
