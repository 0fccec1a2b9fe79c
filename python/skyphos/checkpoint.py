"""Checkpoints of iterative programs: what each rank holds after an iteration, on disk, so that a group that starts
again goes on from there with the same bits.

Each rank writes one file, under a temporary name, and renames it when all of it is on the disk. Its name ends in a
checksum of its bytes, so that a file is what it was or is no checkpoint. An iteration counts when all ranks have it
whole: ranks agree on the last such one when they restore. Older ones are removed only after all ranks have written a
newer one, so a group that dies while it writes has the one before. Folders may be shared by all hosts or each host's
own.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .errors import BadInput
from .together import reduce_number, together

if TYPE_CHECKING:
    from .comm import Comm

__all__ = ["Checkpoint", "Restored"]

#: Iterations that are kept whole.
_KEEP = 2

#: Hexadecimal digits of a checksum in a name.
_DIGITS = 32

_NAMED = re.compile(r"iteration-(\d{1,18})\.rank-(\d+)-of-(\d+)\.([0-9a-f]{32})\.npz")


class Restored:
    """What a rank held after an iteration.

    Attributes
    ----------
    iteration : int
        The last one that all ranks have.
    state : dict of str to ndarray
        What was saved, with the same bits and types.
    """

    def __init__(self, iteration: int, state: dict[str, npt.NDArray[Any]]) -> None:
        self.iteration, self.state = iteration, state

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self.state[name]

    def __repr__(self) -> str:
        return f"Restored(iteration={self.iteration}, {', '.join(sorted(self.state))})"


class Checkpoint:
    """Saves what ranks hold every so many iterations.

    Parameters
    ----------
    path : str or path
        A folder, made if it is not there; of one program only.
    every : int, default 1
        Iterations from one checkpoint to the next.

    Raises
    ------
    BadInput
        ``every`` is below 1.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np, skyphos as sky
    >>> folder = tempfile.mkdtemp()
    >>> def run(comm, iterations):
    ...     checkpoint = sky.Checkpoint(folder, every=2)
    ...     found = checkpoint.restore(comm)
    ...     first, x = (0, np.zeros(3)) if found is None else (found.iteration, found["x"])
    ...     for iteration in range(first + 1, iterations + 1):
    ...         x = comm.allreduce(x + iteration)
    ...         checkpoint.save(comm, iteration, {"x": x})
    ...     return first, x
    >>> with sky.init() as comm:
    ...     run(comm, 5)  # dies, let us say, after iteration 5
    ...     run(comm, 6)  # goes on after iteration 4
    (0, array([15., 15., 15.]))
    (4, array([21., 21., 21.]))
    """

    def __init__(self, path: str | os.PathLike[str], *, every: int = 1) -> None:
        if isinstance(every, bool) or not hasattr(every, "__index__") or every < 1:
            raise BadInput(f"every must be a number of iterations, at least 1, not {every!r}")
        self.path, self.every = Path(path), int(every)

    def __repr__(self) -> str:
        return f"Checkpoint({str(self.path)!r}, every={self.every})"

    def is_due(self, iteration: int) -> bool:
        """Whether :meth:`save` would write this iteration.

        Examples
        --------
        >>> import skyphos as sky
        >>> [i for i in range(1, 8) if sky.Checkpoint("a", every=3).is_due(i)]
        [3, 6]
        """
        return iteration % self.every == 0

    def save(self, comm: Comm, iteration: int, state: Mapping[str, npt.ArrayLike]) -> bool:
        """Write what this rank holds after an iteration, if one is due. Collective.

        Parameters
        ----------
        comm : Comm
            The group.
        iteration : int
            Its number, 0 or more, the same on all ranks.
        state : mapping of str to array_like
            What :meth:`restore` is to give back. Arrays of numbers, of any shape.

        Returns
        -------
        bool
            Whether it was due.

        Raises
        ------
        BadInput
            A file cannot be written, or something in ``state`` is no array of numbers; on all ranks.
        """
        if not self.is_due(iteration):
            return False
        together(comm, lambda: self._write(comm, iteration, state))
        # All have this one whole now.
        self._remove_before(comm, iteration)
        return True

    def restore(self, comm: Comm) -> Restored | None:
        """What this rank held after the last iteration that all ranks have whole; None where there is none. Collective.

        Raises
        ------
        BadInput
            What is there was saved by a group of another size; on all ranks.
        """
        found = self._files(comm)
        together(comm, lambda: self._refuse_other_sizes(comm, bool(found)))
        below = 10**18
        while True:
            # The last that each rank has below the last one tried; then the least of those, if all have it whole.
            mine = max((iteration for iteration in found if iteration < below), default=-1)
            candidate = int(reduce_number(comm, mine, op="min"))
            if candidate < 0:
                return None
            state = _read(found.get(candidate))
            if reduce_number(comm, int(state is not None), op="min"):
                assert state is not None
                return Restored(candidate, state)
            below = candidate

    def _files(self, comm: Comm) -> dict[int, list[Path]]:
        """This rank's files by iteration; there may be damaged ones among them."""
        found: dict[int, list[Path]] = {}
        for path, iteration, rank, size in self._all():
            if (rank, size) == (comm.rank, comm.size):
                found.setdefault(iteration, []).append(path)
        return found

    def _all(self) -> list[tuple[Path, int, int, int]]:
        names = sorted(os.listdir(self.path)) if self.path.is_dir() else []
        matches = [_NAMED.fullmatch(name) for name in names]
        return [(self.path / m[0], int(m[1]), int(m[2]), int(m[3])) for m in matches if m]

    def _refuse_other_sizes(self, comm: Comm, found: bool) -> None:
        sizes = {size for _, _, _, size in self._all()} - {comm.size}
        if sizes and not found:
            raise BadInput(
                f"{self.path}: saved by a group of {min(sizes)} ranks, this one has {comm.size}: start as many, "
                "or name another folder"
            )

    def _write(self, comm: Comm, iteration: int, state: Mapping[str, npt.ArrayLike]) -> None:
        if iteration < 0 or iteration >= 10**18:
            raise BadInput(f"iteration {iteration} is not between 0 and 10^18")
        arrays = {name: np.asarray(value) for name, value in state.items()}
        for name, array in arrays.items():
            if array.dtype.hasobject:
                raise BadInput(f"{name!r} is no array of numbers and cannot be saved (dtype {array.dtype})")
        stem = f"iteration-{iteration}.rank-{comm.rank}-of-{comm.size}"
        temporary = self.path / f".{stem}.{secrets.token_hex(4)}"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with open(temporary, "x+b") as file:
                np.savez(file, **_numbered(arrays))
                file.flush()
                os.fsync(file.fileno())
                name = f"{stem}.{_checksum(file)}.npz"
            temporary.replace(self.path / name)
            _sync_folder(self.path)
        except OSError as error:
            raise BadInput(f"{error.filename or self.path}: {error.strerror or error}") from None
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)

    def _remove_before(self, comm: Comm, iteration: int) -> None:
        mine = self._files(comm)
        older = sorted(number for number in mine if number < iteration)
        for number in older[: len(older) - (_KEEP - 1)]:
            for path in mine[number]:
                path.unlink(missing_ok=True)  # another replica of this rank may have done so


def _numbered(arrays: dict[str, npt.NDArray[Any]]) -> dict[str, Any]:
    """Arrays under numbers, and their names as one more: not every name can be one in an archive."""
    names = np.frombuffer(json.dumps(list(arrays)).encode(), np.uint8)
    return {"names": names} | {f"array{k}": array for k, array in enumerate(arrays.values())}


def _checksum(file: IO[bytes]) -> str:
    file.seek(0)
    found = hashlib.blake2b(digest_size=_DIGITS // 2)
    while chunk := file.read(1 << 20):
        found.update(chunk)
    return found.hexdigest()


def _read(paths: list[Path] | None) -> dict[str, npt.NDArray[Any]] | None:
    """What was saved, from the first of these files that is whole."""
    for path in paths or []:
        named = _NAMED.fullmatch(path.name)
        try:
            with open(path, "rb") as file:
                if named is None or _checksum(file) != named[4]:
                    continue
                file.seek(0)
                with np.load(file, allow_pickle=False) as arrays:
                    names = json.loads(arrays["names"].tobytes())
                    return {name: arrays[f"array{k}"] for k, name in enumerate(names)}
        except Exception:
            # It was removed meanwhile, or cannot be read; or it is no checkpoint though its name says so, which NumPy
            # tells by errors of all kinds. The others will hear that this rank has none.
            continue
    return None


def _sync_folder(path: Path) -> None:
    """A file's name is on the disk once its folder is."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
