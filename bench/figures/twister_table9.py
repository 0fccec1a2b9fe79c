"""*Twister*, Table 9: the size of socket buffers against the time of moving much data.

The paper: 1 GB along a chain of 125 nodes with 1 Gbit/s links, Java sockets. Ours: every rank receives from one
neighbour and sends to the other at once, as in a chain: a dense allreduce around a ring of 4 ranks, 6 messages of 4 MB,
in the lab at 1 Gbit/s, with `sky.init(socket_buffer=)`. Linux doubles the number for its own accounting. A buffer
whose size is set no longer grows; where no size is set, the kernel lets buffers grow. The rate is that at which a rank
receives.
"""

from __future__ import annotations

from typing import Any

from lab.contenders import BUFFER_BYTES
from lab.contenders.packets import LARGE_BYTES, messages
from lab.link import FRAMING, rate_bits
from lab.run import run
from lab.scenario import Scenario

from .style import COLOURS, MARKERS, THEIRS, Log, as_point, new, plain_numbers, quartiles

TITLE = "Twister Table 9: socket buffers"
NEEDS_ROOT = True
RATE = "1gbit"
RANKS = 4
# Seconds for 1 GB, by KB of the buffer.
PAPER_S = {8: 65.5, 16: 45.46, 32: 17.77, 64: 10.8, 128: 8.29, 256: 8.27, 512: 8.27, 1024: 8.27}
_PAPER_BYTES = 1e9


def measure(quick: bool, log: Log) -> dict[str, Any]:
    """Times with each size of buffers."""
    turns, placements = (2, 1) if quick else (8, 3)
    buffers = BUFFER_BYTES[:3] if quick else BUFFER_BYTES
    log(f"{len(buffers)} sizes of buffers, {placements} placements of {turns} iterations")
    result = run(
        Scenario(
            name="twister_table9",
            title=TITLE,
            hosts=RANKS,
            n=RANKS,
            data={"kind": "uniform", "nnz": 1},
            contenders={f"buffer_{size or 'auto'}": {} for size in buffers},
            rate=RATE,
            iterations=turns,
            placements=placements,
        ),
        log,
    )
    if result.failed:
        raise RuntimeError(str(result.failed))
    points = []
    for size in buffers:
        times = [time for some in result.times[f"buffer_{size or 'auto'}"] for time in some]
        points.append(as_point(quartiles(times), buffer_bytes=size))
    return {
        "rate": RATE,
        "ranks": RANKS,
        "received_bytes": messages(LARGE_BYTES, RANKS) * LARGE_BYTES,
        "link_bytes_per_s": rate_bits(RATE) / 8 / FRAMING,
        "points": points,
        "paper": [
            {"buffer_bytes": kb << 10, "seconds": s, "bytes_per_s": _PAPER_BYTES / s} for kb, s in PAPER_S.items()
        ],
    }


def draw(entry: dict[str, Any]) -> Any:
    """Ours and theirs in MB/s."""
    figure, (axes,) = new()
    sent = entry["received_bytes"] / 1e6
    set_by_hand = [point for point in entry["points"] if point["buffer_bytes"]]
    x = [point["buffer_bytes"] / 1024 for point in set_by_hand]
    y = [sent / point["median"] for point in set_by_hand]
    spread = [
        [sent / p["median"] - sent / p["high"] for p in set_by_hand],
        [sent / p["low"] - sent / p["median"] for p in set_by_hand],
    ]
    label = f"ours: ring of {entry['ranks']}, {entry['rate'].replace('gbit', ' Gbit/s')} in the lab; quartiles"
    axes.errorbar(x, y, spread, color=COLOURS[2], marker=MARKERS[0], capsize=3, label=label, zorder=3)
    left = [sent / point["median"] for point in entry["points"] if not point["buffer_bytes"]]
    axes.axhline(left[0], color=COLOURS[2], linestyle=(0, (6, 2)), linewidth=1.2, label="ours, left to the kernel")
    axes.plot(
        [point["buffer_bytes"] / 1024 for point in entry["paper"]],
        [point["bytes_per_s"] / 1e6 for point in entry["paper"]],
        color=THEIRS,
        linestyle="--",
        marker="*",
        markersize=10,
        label="Twister: chain of 125, 1 Gbit/s",
        zorder=2,
    )
    limit = entry["link_bytes_per_s"] / 1e6
    axes.axhline(limit, color="black", linestyle=":", linewidth=1.2, label=f"what the link carries, {limit:.0f} MB/s")
    axes.set_xscale("log", base=2)
    plain_numbers(axes.xaxis, [point["buffer_bytes"] / 1024 for point in entry["paper"]])
    axes.set_ylim(0, 1.12 * limit)
    axes.set_xlabel("socket buffer, KB (logarithmic)")
    axes.set_ylabel("MB/s that a rank receives")
    figure.legend(loc="outside lower center", ncols=2, fontsize=8.5, frameon=False)
    figure.suptitle(TITLE, fontsize=12, fontweight="bold")
    return figure
