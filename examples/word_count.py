"""Counts the words of a text, over several processes.

    skyphos split README.md parts --partitions 8
    skyphos run -n 4 examples/word_count.py parts/partitions.json

Each rank counts the words of its partitions and then gets the counts of its share of the words; rank 0 gets the most
frequent ones.
"""

import sys
from collections.abc import Iterator

import skyphos as sky
from skyphos.launch import discover
from skyphos.mapreduce import MapReduce
from skyphos.shuffle import words

USAGE = "usage: word_count.py PARTITIONS.json, which `skyphos split README.md parts --partitions 8` makes in parts/"


def all_words(text: bytes, state: None) -> Iterator[tuple]:
    """All words of a partition, to be counted."""
    return ((word, None) for word in words(text))


def most_frequent(keys: list[bytes], counts) -> list[tuple[str, int]]:
    """The ten most frequent words of all, and their counts."""
    best = sorted(zip(counts.tolist(), keys, strict=True), reverse=True)[:10]
    return [(word.decode(errors="replace"), count) for count, word in best]


if len(sys.argv) != 2:
    # All ranks end here; rank 0 prints the usage.
    sys.exit(USAGE if discover().rank == 0 else 2)

with sky.init() as comm:
    job = MapReduce(comm, map=all_words, reduce="count", combine=most_frequent, partitions=sys.argv[1])
    best = job.run()
    if comm.rank == 0:
        for word, count in best:
            print(f"{count:8,} {word}")
        print(job.iterations[-1])
