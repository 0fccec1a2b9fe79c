"""*Twister*, Fig. 8: a shuffle with and without local reduction, on 125 nodes; the network simulated.

As in the paper: 8 map tasks a node, each with 1 GB of rows for the same 500,000 keys, one reduce task a node. Without
local reduction a node sends 8 GB, with it 1 GB. The time to add rows is measured on one core of this machine. With
local reduction a node adds its tasks' rows before the shuffle. After it a reduce task adds the blocks that it received:
one from each map task, or with local reduction one from each node.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from .folding import folding
from .style import COLOURS, THEIRS, Log, new
from .twister import GB, shuffle_bound_s, shuffle_s

TITLE = "Twister Fig. 8: shuffling with and without local reduction"
NEEDS_ROOT = False
NODES, TASKS, TASK_BYTES = 125, 8, GB
#: Seconds in the paper's text: about 8 minutes, 40 s, and 20 s for local reduction.
PAPER_S = {"without": 480.0, "with": 40.0}
PAPER_EXTRA_S = 20.0
PARTS = ("local_reduction_s", "shuffle_s", "reduce_s")


def measure(quick: bool, log: Log) -> dict[str, Any]:
    """Seconds of each part, with and without local reduction."""
    scale = 1e-3 if quick else 1.0
    adding = folding(500) if quick else folding()
    new_rate, known_rate = 1e-9 / adding.new_byte_s, 1e-9 / adding.more_byte_s
    log(f"one core adds {new_rate:.2f} GB/s of rows with new keys, {known_rate:.2f} GB/s with known ones")
    task = TASK_BYTES * scale
    points = []
    for variant in ("without", "with"):
        node = task * (TASKS if variant == "without" else 1)
        link_s, uplink_s = shuffle_bound_s(node, NODES)
        point = {
            "way": variant,
            "node_bytes": node,
            "local_reduction_s": adding.seconds(task, TASKS) if variant == "with" else 0.0,
            "shuffle_s": shuffle_s(node, NODES),
            # Each reduce task gets its share of the keys as a block from each map task, or from each node.
            "reduce_s": adding.seconds(task / NODES, NODES * (TASKS if variant == "without" else 1)),
            "link_s": link_s,
            "uplink_s": uplink_s,
        }
        points.append(point)
        log(f"{variant}: {' + '.join(f'{point[part]:.3f}' for part in PARTS)} s; uplinks allow {uplink_s:.3f}")
    return {"adding": asdict(adding), "points": points, "paper_s": PAPER_S, "paper_extra_s": PAPER_EXTRA_S}


def draw(entry: dict[str, Any]) -> Any:
    """A bar of parts with and without local reduction, beside the paper's."""
    figure, (axes,) = new(width=9, height=4.4)
    names = {"local_reduction_s": "local reduction, one core", "shuffle_s": "shuffle (simulated)",
             "reduce_s": "reduce, one core"}  # fmt: skip
    ticks: list[tuple[float, str]] = []
    y = 0.0
    for point in reversed(entry["points"]):
        variant, left = point["way"], 0.0
        theirs = entry["paper_s"][variant]
        axes.barh(y, theirs, height=0.7, color=THEIRS, label="the paper" if not ticks else None, zorder=3)
        axes.text(theirs + 4, y, f"{theirs:.0f} s", va="center", fontsize=9)
        for number, part in enumerate(PARTS):
            label = names[part] if not ticks else None
            axes.barh(y + 0.8, point[part], left=left, height=0.7, color=COLOURS[2 + number], label=label, zorder=3)
            left += point[part]
        axes.text(left + 4, y + 0.8, f"{left:.1f} s", va="center", fontsize=9)
        axes.plot([point["uplink_s"]] * 2, [y + 0.4, y + 1.2], color="black", linestyle=":", zorder=4,
                  label="least time of the uplinks" if not ticks else None)  # fmt: skip
        ticks.append((y + 0.4, f"{variant} local reduction:\n{point['node_bytes'] / 1e9:g} GB a node"))
        y += 2.2
    axes.set_yticks([at for at, _ in ticks], [name for _, name in ticks])
    axes.set_xlabel("seconds")
    axes.set_xlim(0, 1.1 * max(entry["paper_s"].values()))
    axes.grid(visible=False, axis="y")
    figure.legend(loc="outside lower center", ncols=3, fontsize=8.5, frameon=False)
    figure.suptitle(f"{TITLE}, {NODES} nodes", fontsize=12, fontweight="bold")
    return figure
