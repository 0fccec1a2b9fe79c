"""*Sparse Allreduce*, Fig. 7: reduce time against threads, on machines of 8 cores, from a model.

The model: Twitter's graph, 16×4, 64 nodes, with the time of all our ranks' work divided by min(threads, 8) and an
unchanged network. This is an upper bound of the gain. Beside it the measured gain on this machine's cores: reductions
between ranks in one process, one layer, with 1 and 2 threads for sums (`sky.local(threads=)`).
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from typing import Any

import numpy as np

import skyphos as sky
from skyphos.planning import Profile

from .graphs import TWITTER, layers, network, plan
from .style import COLOURS, MARKERS, Log, as_point, new, plain_numbers, quartiles

TITLE = "Sparse Allreduce Fig. 7: reduction against threads"
NEEDS_ROOT = False
RANKS, DEGREES, CORES = 64, (16, 4), 8
THREADS = (1, 2, 4, 8, 16)
HERE_RANKS, HERE_N, HERE_ENTRIES = 2, 1 << 24, 4_000_000
_NETWORK = ("latency_s", "rate", "incast", "ring_gain", "cores", "message_s")


def faster(machine: Profile, times: float) -> Profile:
    """The profile of a machine with ``times`` times faster processors and the same network."""
    work = {f.name: getattr(machine, f.name) / times for f in fields(Profile) if f.name not in _NETWORK}
    return replace(machine, **work)


def measure(quick: bool, log: Log) -> dict[str, Any]:
    """The model, and this machine."""
    model = []
    for threads in THREADS[:2] if quick else THREADS:
        cluster = network(RANKS)
        reduce = plan(TWITTER, DEGREES, replace(cluster, machine=faster(cluster.machine, min(threads, CORES)))).last_s
        model.append({"threads": threads, "reduce_s": reduce})
    log(f"model, {layers(DEGREES)}: " + ", ".join(f"{1e3 * p['reduce_s']:.0f}" for p in model) + " ms")
    n, entries, turns = (1 << 16, 10_000, 3) if quick else (HERE_N, HERE_ENTRIES, 40)
    here = [as_point(quartiles(_here(threads, n, entries, turns)), threads=threads) for threads in (1, 2)]
    log("here: " + ", ".join(f"{1e3 * point['median']:.1f}" for point in here) + " ms")
    return {
        "graph": TWITTER.name,
        "degrees": layers(DEGREES),
        "cores": CORES,
        "model": model,
        "here": {"cores": os.cpu_count(), "ranks": HERE_RANKS, "n": n, "entries": entries, "points": here},
    }


def _here(threads: int, n: int, entries: int, turns: int) -> list[float]:
    """Times of a reduction, from the first start to the last end; the first two are dropped."""
    comms = sky.local(HERE_RANKS, threads=threads)
    rng = np.random.default_rng(11)
    sets = [np.sort(rng.choice(n, entries, replace=False)) for _ in comms]
    counts = np.bincount(np.concatenate(sets), minlength=n)

    def body(comm: sky.Comm) -> list[float]:
        mine = sets[comm.rank]
        plan = comm.configure(mine, mine, n=n, degrees=[HERE_RANKS])
        values = np.ones(entries, np.float32)
        out = np.empty_like(values)
        times = []
        for _ in range(turns + 2):
            comm.barrier()
            begin = time.perf_counter()
            plan.reduce(values, out=out)
            comm.barrier()
            times.append(time.perf_counter() - begin)
        if not np.array_equal(out, counts[mine]):
            raise RuntimeError("a reduction is wrong")
        comm.close()
        return times[2:]

    with ThreadPoolExecutor(HERE_RANKS) as pool:
        return next(iter(pool.map(body, comms)))


def draw(entry: dict[str, Any]) -> Any:
    """Model and measurement, relative to one thread's time."""
    figure, (axes,) = new(width=8, height=4.8)
    model, here = entry["model"], entry["here"]
    alone = model[0]["reduce_s"]
    label = (
        f"model: {entry['graph']}, {entry['degrees']}, work over min(threads, {entry['cores']}); "
        f"one thread {1e3 * alone:.0f} ms"
    )
    threads = [p["threads"] for p in model]
    shares = [p["reduce_s"] / alone for p in model]
    axes.plot(threads, shares, color=COLOURS[0], marker=MARKERS[0], label=label, zorder=3)
    for point, share in zip(model, shares, strict=True):
        aside = (-6, 6) if point is model[0] else (14, -15)
        axes.annotate(f"{1e3 * point['reduce_s']:.0f} ms", (point["threads"], share), xytext=aside,
                      textcoords="offset points", ha="right", fontsize=8.5)  # fmt: skip
    first = here["points"][0]["median"]
    middle = [p["median"] / first for p in here["points"]]
    spread = [
        [(p["median"] - p["low"]) / first for p in here["points"]],
        [(p["high"] - p["median"]) / first for p in here["points"]],
    ]
    label = (
        f"measured here on {here['cores']} cores: {here['ranks']} ranks in a process, "
        f"{here['entries'] / 1e6:g} M entries; one thread {1e3 * first:.0f} ms"
    )
    axes.errorbar([p["threads"] for p in here["points"]], middle, spread, color=COLOURS[3], marker=MARKERS[1],
                  linestyle=(0, (4, 2)), capsize=3, label=label, zorder=4)  # fmt: skip
    axes.set_xscale("log", base=2)
    plain_numbers(axes.xaxis, threads)
    axes.set_ylim(0, 1.25)
    axes.set_xlim(0.7, 20)
    axes.set_xlabel("threads (logarithmic)")
    axes.set_ylabel("time of a reduction, relative to one thread")
    figure.legend(loc="outside lower center", ncols=1, fontsize=8.5, frameon=False)
    figure.suptitle(TITLE, fontsize=12, fontweight="bold")
    return figure
