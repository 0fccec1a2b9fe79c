"""Spill files: keyed values that exceed the memory limit, in Arrow IPC files, by part of the key space."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..collectives.packing import Bytes
from ..errors import BadInput
from .stores import Store

__all__ = ["PARTS", "Spill", "memory_of_rank"]

#: Number of parts into which a file divides the keys, by their hash; a wave reads some of them.
PARTS = 64


def memory_of_rank(ranks_on_host: int) -> int:
    """Default memory of a rank's stores, in bytes: a quarter of its share of the host's free memory."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    try:
        words = Path("/proc/meminfo").read_text(encoding="ascii").split()
        free = int(words[words.index("MemAvailable:") + 1]) << 10
    except (OSError, ValueError, IndexError):
        pass  # not Linux
    return max(free // 4 // max(1, ranks_on_host), 64 << 20)


class Spill:
    """Temporary files of one rank and shuffle, in a folder that :meth:`close` removes."""

    def __init__(self, folder: str | os.PathLike[str] | None) -> None:
        self._parent = folder
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._files: list[Any] = []
        #: Bytes written.
        self.bytes = 0

    def add(self, store: Store) -> None:
        """Write the content of a store.

        Raises
        ------
        BadInput
            If pyarrow is not installed, or the disk is full.
        """
        try:
            import pyarrow as arrow  # type: ignore[import-untyped, unused-ignore]
        except ImportError:
            raise BadInput(
                "the shuffled data exceed memory=, and pyarrow, which writes them to files, is not "
                'installed (pip install "skyphos[graph]"); memory= is the limit in bytes'
            ) from None
        _, parts = store.places(1, PARTS)
        schema = arrow.schema([("part", arrow.int32()), ("block", arrow.large_binary())])
        try:
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="skyphos-shuffle-", dir=self._parent)
            path = os.path.join(self._folder.name, f"{len(self._files)}.arrow")
            with arrow.OSFile(path, "wb") as sink, arrow.ipc.new_file(sink, schema) as file:
                for part, block in enumerate(store.blocks(parts, PARTS)):
                    if block.size:
                        column = arrow.Array.from_buffers(
                            arrow.large_binary(),
                            1,
                            [None, arrow.py_buffer(np.array([0, block.size], np.int64)), arrow.py_buffer(block)],
                        )
                        file.write_batch(arrow.record_batch([arrow.array([part], arrow.int32()), column], schema))
            self.bytes += os.path.getsize(path)
            self._files.append(arrow.ipc.open_file(arrow.memory_map(path)))
        except OSError as error:
            where = self._parent or tempfile.gettempdir()
            raise BadInput(
                f"values that do not fit memory cannot be written to {where} (spill_dir=): {error}"
            ) from None

    def blocks(self, wave: int, waves: int) -> Iterator[Bytes]:
        """The blocks of a wave, in the order in which they were written, mapped from the files."""
        for file in self._files:
            for number in range(file.num_record_batches):
                batch = file.get_batch(number)
                if batch.column(0)[0].as_py() * waves // PARTS == wave:
                    yield np.frombuffer(batch.column(1)[0].as_buffer(), np.uint8)

    def close(self) -> None:
        """Remove the files."""
        self._files.clear()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
