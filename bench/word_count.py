"""Word count of 1 GB of text, compared with a Spark DataFrame on the same cores in one run.

    .venv/bin/pip install -e '.[spark]'        # Spark, and Java 17 or later
    .venv/bin/python bench/word_count.py       # two texts of 1 GB; bar: 5 times faster

Texts: ``multi30k``, the sentences of Multi30k (train, English and German) repeated; ``drawn``, words drawn from five
million with P(i) ~ 1/i^1.1. A time is from files in the page cache to the ten most frequent words, with processes
already running; the first run, in which Spark compiles, does not count. Skyphos reads partitions of ``skyphos split``,
Spark the text.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from common import median_ratio, report

MULTI30K = Path(__file__).resolve().parents[2] / "shared" / "data" / "multi30k"
ROUNDS = 3
TOP = 10


def sentences() -> bytes:
    """The training sentences of Multi30k."""
    files = [MULTI30K / f"train.lc.norm.tok.{language}.gz" for language in ("en", "de")]
    return b"".join(gzip.decompress(file.read_bytes()) for file in files)


def drawn(rng: np.random.Generator) -> bytes:
    """A million words in lines of 16: word i is the number i in letters, so that frequent words are short."""
    weights = np.arange(1, 5_000_001, dtype=np.float64) ** -1.1
    ranks = np.searchsorted(np.cumsum(weights) / weights.sum(), rng.random(1_000_000))
    letters = np.array(list("etaoinshrdlu"))

    def word(rank: int) -> str:
        spelled = ""
        while rank >= 0:
            spelled, rank = spelled + letters[rank % 12], rank // 12 - 1
        return spelled

    known = {rank: word(rank) for rank in np.unique(ranks).tolist()}
    named = [known[rank] for rank in ranks.tolist()]
    return "\n".join(" ".join(named[k : k + 16]) for k in range(0, len(named), 16)).encode() + b"\n"


def write(path: Path, kind: str, size: int) -> None:
    """Write a text of about ``size`` bytes, in whole lines."""
    rng = np.random.default_rng(1)
    repeated = sentences() if kind == "multi30k" else b""
    with path.open("wb") as file:
        while file.tell() < size:
            file.write(repeated or drawn(rng))


def all_words(text: bytes, state: None) -> Iterator[tuple[Any, None]]:
    """The map function for Skyphos."""
    from skyphos.shuffle import words

    return ((batch, None) for batch in words(text))


def ours(partitions: str) -> None:
    """Run a rank of Skyphos: rank 0 prints the times, the number of words, and the most frequent ones."""
    import skyphos as sky
    from skyphos.mapreduce import MapReduce

    with sky.init() as comm:
        times = []
        for _ in range(ROUNDS + 1):
            comm.barrier()
            start = time.perf_counter()
            # A new job, so that it reads the partitions again.
            job = MapReduce(comm, map=all_words, reduce="count", partitions=partitions)
            keys, counts = job.run()
            first = np.argsort(-counts, kind="stable")[:TOP]
            frequent = [keys[k] for k in first], counts[first]
            words, totals = comm.shuffle(*frequent, partition=lambda words, _: np.zeros(len(words), np.int64))
            comm.barrier()
            times.append(time.perf_counter() - start)
            distinct = int(comm.allreduce(np.array([len(keys)], np.int64))[0])
        if comm.rank == 0:
            pairs = zip(totals.tolist(), (word.decode() for word in words), strict=True)
            top = sorted(pairs, key=lambda pair: (-pair[0], pair[1]))[:TOP]
            print(job.iterations[-1], file=sys.stderr)
            print(json.dumps([times[1:], distinct, top]))


def spark(path: str) -> None:
    """Count the words in Spark, and print the same figures."""
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import col, desc, explode, split

    cores = os.cpu_count() or 1
    builder = SparkSession.builder.master(f"local[{cores}]").config("spark.driver.memory", "8g")
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": str(2 * cores)}
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    times = []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        # Words are separated by single spaces, at which Spark splits without a regular expression.
        words = session.read.text(path).select(explode(split(col("value"), " ")).alias("word")).where("word != ''")
        counts = words.groupBy("word").count()
        top = [(row["count"], row["word"]) for row in counts.orderBy(desc("count"), "word").limit(TOP).collect()]
        times.append(time.perf_counter() - start)
    distinct = words.distinct().count()
    session.stop()
    print(json.dumps([times[1:], distinct, top]))


def run(command: list[str]) -> tuple[list[float], int, list[list[Any]]]:
    """Run one of the programs; return its printed results."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    _, begin, told = done.stdout.splitlines()[-1].partition("[[")
    times, distinct, top = json.loads(begin + told)
    return times, distinct, top


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--mb", type=int, default=1000, help="megabytes of text (1000)")
    options.add_argument("--texts", nargs="+", default=["multi30k", "drawn"], choices=["multi30k", "drawn"])
    options.add_argument("--ours", metavar="PARTITIONS", help=argparse.SUPPRESS)
    options.add_argument("--spark", metavar="TEXT", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.ours:
        return ours(given.ours)
    if given.spark:
        return spark(given.spark)
    cli = [sys.executable, "-m", "skyphos.cli"]
    cores = os.cpu_count() or 1
    for kind in given.texts:
        if kind == "multi30k" and not MULTI30K.exists():
            print(f"multi30k: left out, {MULTI30K} is not there")
            continue
        with TemporaryDirectory() as folder:
            text, parts = Path(folder, "text.txt"), Path(folder, "parts")
            write(text, kind, given.mb * 1_000_000)
            start = time.perf_counter()
            split_to = [*cli, "split", str(text), str(parts), "--partitions", str(4 * cores)]
            subprocess.run(split_to, check=True, stdout=subprocess.DEVNULL)
            split_s = time.perf_counter() - start
            mine = [__file__, "--ours", str(parts / "partitions.json")]
            times, distinct, top = run([*cli, "run", "-n", str(cores), *mine])
            theirs, their_distinct, their_top = run([sys.executable, __file__, "--spark", str(text)])
            if (distinct, [count for count, _ in top]) != (their_distinct, [count for count, _ in their_top]):
                raise SystemExit(f"{kind}: different counts: {distinct}, {top}; {their_distinct}, {their_top}")
            title = f"{kind}, {text.stat().st_size:,} bytes, {distinct:,} words (skyphos split, once: {split_s:.2f} s)"
            report(title, {"skyphos": times, "Spark DataFrame": theirs}, median_ratio(times, theirs), 1 / 5)
    return None


if __name__ == "__main__":
    main()
