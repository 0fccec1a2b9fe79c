"""*Twister*, Fig. 7: time that serialisation, transfer and de-serialisation take of a broadcast.

The paper: Java objects along a chain of 1 Gbit/s links, as bytes or doubles; nine tenths of the time is not the
transfer. Ours: from one host to another in the lab at 1 Gbit/s, by `comm.broadcast`. The data is a dict of 64 arrays,
or a list with a `bytes` object of 512 bytes for each of the paper's centroids. For comparison the same by hand:
`pickle.dumps`, a broadcast of its bytes, `pickle.loads`.
"""

from __future__ import annotations

import json
import pickle
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from lab.link import FRAMING, rate_bits
from on_hosts import rows_of_ranks

from .style import COLOURS, Log, new, plain_numbers, quartiles

TITLE = "Twister Fig. 7: serialisation, broadcast, reading"
NEEDS_ROOT = True
RATE = "1gbit"
BYTES = 256 << 20
ARRAYS = 64
STAGES = ("serialise", "broadcast", "read")


def data(kind: str, size: int) -> Any:
    """The broadcast data: ``size`` bytes in arrays, or in objects of 512 bytes."""
    if kind == "objects":
        return [number.to_bytes(8, "little") * 64 for number in range(size // 512)]
    each = size // ARRAYS
    dtype = np.uint8 if kind == "bytes" else np.float64
    return {f"array {k}": np.full(each // np.dtype(dtype).itemsize, k + 1, dtype) for k in range(ARRAYS)}


KINDS = ("bytes", "doubles", "objects")


def one_rank(size: int, rounds: int) -> None:
    """Run one of two ranks. Rank 0 sends, and prints for each kind and method the seconds until both end each stage."""
    import skyphos as sky
    from skyphos.collectives.packing import pack, unpack

    with sky.init(timeout=300) as comm:
        root = comm.rank == 0
        for kind in KINDS:
            x = data(kind, size)
            for variant in ("ours", "pickle"):
                for _ in range(rounds + 1):
                    comm.barrier()
                    begin = time.perf_counter()
                    parts = (pack(x) if variant == "ours" else pickle.dumps(x, protocol=4)) if root else None
                    serialised = time.perf_counter() - begin
                    comm.barrier()
                    begin = time.perf_counter()
                    sent = x if variant == "ours" and root else parts
                    got = comm.broadcast(sent)
                    comm.barrier()
                    moved = time.perf_counter() - begin
                    begin = time.perf_counter()
                    if variant == "pickle":
                        got = pickle.loads(got)
                        read = time.perf_counter() - begin
                    else:
                        # `broadcast` packs and unpacks inside: measured here alone, and subtracted from `moved`.
                        held = pack(got)
                        begin = time.perf_counter()
                        unpack(held)
                        read = time.perf_counter() - begin
                        del held
                    slowest = comm.allreduce(np.array([serialised, read]), op="max")
                    if variant == "ours":
                        moved -= slowest.sum()
                    right = got == x if kind == "objects" else all((got[name] == x[name]).all() for name in x)
                    if not right:
                        raise SystemExit(f"{kind} {variant}: wrong")
                    del got, parts, sent
                    if root:
                        print(json.dumps([kind, variant, slowest[0], moved, slowest[1]]), flush=True)


def measure(quick: bool, log: Log) -> dict[str, Any]:
    """Times of each stage."""
    size, rounds = (8 << 20, 1) if quick else (BYTES, 5)
    log(f"{size >> 20} MB of {len(KINDS)} kinds, {rounds} times")
    bench = Path(__file__).resolve().parent.parent
    imports = f"import sys; sys.path[0] = {str(bench)!r}; from figures.twister_fig7 import one_rank"
    code = f"{imports}; one_rank({size}, {rounds})"
    rows = rows_of_ranks([sys.executable, "-c", code], 2, 1, RATE, 29980)
    points = []
    for kind in KINDS:
        for variant in ("ours", "pickle"):
            times = [row[2:] for row in rows if row[:2] == [kind, variant]][1:]
            found = [quartiles([each[stage] for each in times]) for stage in range(len(STAGES))]
            points.append({"kind": kind, "way": variant, **{s: f.median for s, f in zip(STAGES, found, strict=True)}})
    return {"rate": RATE, "bytes": size, "floor_s": size * FRAMING / (rate_bits(RATE) / 8), "points": points}


def draw(entry: dict[str, Any]) -> Any:
    """Bars of stages."""
    figure, (axes,) = new()
    names = {
        ("bytes", "ours"): "arrays of bytes",
        ("doubles", "ours"): "arrays of doubles",
        ("objects", "ours"): "an object each 512 bytes",
    }
    places, labels = [], []
    for index, point in enumerate(entry["points"]):
        at = index + index // 2 * 0.5
        places.append(at)
        labels.append(f"{names[(point['kind'], 'ours')]}\n{'comm.broadcast' if point['way'] == 'ours' else 'pickle'}")
        left = 0.0
        for stage, colour in zip(STAGES, (COLOURS[3], COLOURS[2], COLOURS[5]), strict=True):
            seconds = max(point[stage], 0.0)
            axes.barh(at, seconds, left=left, color=colour, height=0.8, label=stage if index == 0 else None, zorder=3)
            left += seconds
        axes.text(left, at, f" {left:.2f} s", va="center", fontsize=9)
    axes.axvline(entry["floor_s"], color="black", linestyle=":", linewidth=1.2, label="least time of the link")
    plain_numbers(axes.yaxis, places, labels)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.15 * max(sum(point[stage] for stage in STAGES) for point in entry["points"]))
    axes.set_xlabel(f"seconds for {entry['bytes'] >> 20} MB between two hosts at 1 Gbit/s")
    figure.legend(loc="outside lower center", ncols=4, fontsize=8.5, frameon=False)
    figure.suptitle(TITLE, fontsize=12, fontweight="bold")
    return figure
