"""Checkpoints: the state of each rank after an iteration, on disk, from which a group continues with the same bits.

Each rank writes one file under a temporary name, and renames it when it is complete on the disk. The name ends in a
checksum of the content, so that a damaged file is recognised and ignored. An iteration can be restored if all ranks
have a complete file of it: ranks agree on the last such iteration. Older files are removed only after all ranks have
written a newer one, so a group that dies while it writes still has the previous one. All hosts may share the folder, or
each may have its own.

Replicas of a rank need the same files. A replica that finds other files than its siblings raises, or the group fails as
if replicas had different data. Which processes raise is not determined, because the agreement is between ranks, not
processes (``docs/known-limits.md``).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .collectives.agreement import collective, gather_numbers, together
from .errors import BadInput, Mismatch, SkyphosError
from .inputs.arrays import as_numpy
from .inputs.settings import as_path, whole
from .vectors.dtype_names import name_of, type_named

if TYPE_CHECKING:
    from .comm import Comm

__all__ = ["Checkpoint", "Restored"]

#: Number of complete iterations that are not removed.
_KEEP = 2

#: Hexadecimal digits of a checksum in a name.
_DIGITS = 32

_FILE_NAME = re.compile(r"iteration-(\d{1,18})\.rank-(\d+)-of-(\d+)\.([0-9a-f]{32})\.npz")

#: Iteration numbers are below this, so that their digits fit the pattern of names.
_ITERATION_LIMIT = 10**18


class Restored:
    """The state of a rank after an iteration.

    Attributes
    ----------
    iteration : int
        The last iteration that all ranks have.
    state : dict of str to ndarray
        The saved arrays, with the same bits and types.
    """

    def __init__(self, iteration: int, state: dict[str, npt.NDArray[Any]]) -> None:
        self.iteration, self.state = iteration, state

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self.state[name]

    def __repr__(self) -> str:
        return f"Restored(iteration={self.iteration}, {', '.join(sorted(map(str, self.state)))})"


class Checkpoint:
    """Saves the state of all ranks every ``every`` iterations.

    Parameters
    ----------
    path : str or path
        A folder for one program only, made if it does not exist. ``~`` is the user's home.
    every : int, default 1
        Iterations between two checkpoints.

    Raises
    ------
    BadInput
        If ``every`` is below 1, or ``path`` names an unknown user.

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
    ...     run(comm, 5)  # suppose that it dies after iteration 5
    ...     run(comm, 6)  # continues after iteration 4
    (0, array([15., 15., 15.]))
    (4, array([21., 21., 21.]))
    """

    def __init__(self, path: str | os.PathLike[str], *, every: int = 1) -> None:
        self.every = whole(every, "every", 1, 2**64)
        name = as_path(path, "a checkpoint's path is the name of a folder")
        try:
            self.path = Path(name).expanduser()
        except RuntimeError as error:
            raise BadInput(f"{name}: {error}") from None

    def __repr__(self) -> str:
        return f"Checkpoint({str(self.path)!r}, every={self.every})"

    def is_due(self, iteration: int) -> bool:
        """True if :meth:`save` would write this iteration.

        Raises
        ------
        BadInput
            If ``iteration`` is not a whole number from 0 to 10^18 - 1.

        Examples
        --------
        >>> import skyphos as sky
        >>> [i for i in range(1, 8) if sky.Checkpoint("a", every=3).is_due(i)]
        [3, 6]
        """
        return _whole(iteration) % self.every == 0

    @collective(argument=1)
    def save(self, comm: Comm, iteration: int, state: Mapping[str, npt.ArrayLike]) -> bool:
        """Write the state of this rank after an iteration, if a checkpoint is due. Collective.

        Parameters
        ----------
        comm : Comm
            The group.
        iteration : int
            Number of the iteration, 0 or more, the same on all ranks.
        state : mapping of str to array_like
            The arrays that :meth:`restore` returns: numbers in any shape, of a type of NumPy or of the package
            ``ml_dtypes`` (bfloat16, float8 …). A sparse vector or tensor is saved as its arrays.

        Returns
        -------
        bool
            True if the checkpoint was due.

        Raises
        ------
        BadInput
            On all ranks, if a file cannot be written, ``state`` has something other than arrays of numbers,
            ``iteration`` is not a whole number, or ranks save different iterations.
        Mismatch
            If other ranks are in another call; also if ``iteration`` is due on some ranks only.
        """
        if not self.is_due(iteration):
            return False
        number = _whole(iteration)
        with _errors_name(f"Checkpoint.save of iteration {number}"):
            _refuse_different(gather_numbers(comm, number))
            together(comm, lambda: self._write(comm, number, state))
            # All ranks have written this iteration now.
            self._remove_before(comm, number)
        return True

    @collective(argument=1)
    def restore(self, comm: Comm) -> Restored | None:
        """This rank's state after the last iteration that all ranks have saved; None if there is none. Collective.

        A group continues only from a checkpoint of a group of its size. If a group of another size has saved a later
        iteration, this raises, because continuing from an earlier one would silently discard the work since then.
        Earlier iterations of groups of other sizes are ignored.

        Raises
        ------
        BadInput
            On all ranks, if a folder cannot be read, or its last checkpoint is from a group of another size. If
            replicas of this rank have different files: one of them may have returned, and raises in its next call.
        """
        with _errors_name("Checkpoint.restore"):
            try:
                return self._restore(comm)
            except SkyphosError as error:
                # With other files a replica makes other calls or sends other data; either may be noticed first.
                differ = isinstance(error, Mismatch) or "put different data" in str(error)
                if comm.replication == 1 or not differ:
                    raise
                me = f"rank {comm.rank}, replica {comm.replica}"
                why = "not the checkpoints that another replica of this rank has: give both the same files"
                raise BadInput(f"{me}: {self.path}: {why}") from error

    def _restore(self, comm: Comm) -> Restored | None:
        files = together(comm, lambda: self._files(comm))
        mine = _own_files(comm, files)
        tried = _ITERATION_LIMIT
        while True:
            # Each rank's last iteration before `tried`. The earliest of them is tried next: do all ranks have it?
            last = max((iteration for iteration in mine if iteration < tried), default=-1)
            tried = int(gather_numbers(comm, last).min())
            state = together(comm, partial(_read, mine.get(tried)))
            if tried < 0 or gather_numbers(comm, int(state is not None)).all():
                break
        together(comm, lambda: self._refuse_later(comm, tried, files))
        if tried < 0:
            return None
        assert state is not None
        return Restored(tried, state)

    def _files(self, comm: Comm) -> list[_File]:
        """All checkpoints in the folder, damaged ones too. Removes unfinished files of this process."""
        try:
            names = sorted(os.listdir(self.path))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._unusable(comm, "read checkpoints", error) from None
        unfinished = re.compile(rf"\.iteration-\d+\.{re.escape(_process(comm))}\.[0-9a-f]+")
        for name in names:
            if unfinished.fullmatch(name):  # of a killed process, because this one is not writing now
                with suppress(OSError):
                    (self.path / name).unlink()
        matches = [_FILE_NAME.fullmatch(name) for name in names]
        return [(self.path / m[0], int(m[1]), int(m[2]), int(m[3])) for m in matches if m]

    def _refuse_later(self, comm: Comm, iteration: int, files: list[_File]) -> None:
        """Raise if groups of other sizes have iterations after ``iteration``, this group's last (-1: none)."""
        last: dict[int, int] = {}
        for _, number, _, size in files:
            last[size] = max(number, last.get(size, -1))
        last.pop(comm.size, None)
        if not any(number > iteration for number in last.values()):
            return
        there = " and ".join(f"iteration {last[size]} saved by a group of {size} ranks" for size in sorted(last))
        ours = f"{comm.size} ranks and {'no whole iteration' if iteration < 0 else f'iteration {iteration}'}"
        do = "start that many ranks, name another folder, or remove the files of the others (…-of-N.…)"
        raise BadInput(f"rank {comm.rank}: {self.path}: {there}, this one has {ours}: {do}")

    def _unusable(self, comm: Comm, what: str, error: OSError) -> BadInput:
        is_file = isinstance(error, (NotADirectoryError, FileExistsError))
        return BadInput(
            f"rank {comm.rank}: {self.path}: cannot {what}: {'not a folder' if is_file else error.strerror or error}"
        )

    def _write(self, comm: Comm, iteration: int, state: Mapping[str, npt.ArrayLike]) -> None:
        if not isinstance(state, Mapping):
            raise BadInput(f"rank {comm.rank}: state must be a mapping of names to arrays, not {type(state).__name__}")
        arrays = {name: _array(comm, name, value) for name, value in state.items()}
        self._files(comm)  # frees disk space: removes unfinished files of a killed process
        temporary = self.path / f".iteration-{iteration}.{_process(comm)}.{secrets.token_hex(4)}"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with open(temporary, "x+b") as file:
                np.savez(file, **_numbered(arrays))
                file.flush()
                os.fsync(file.fileno())
                name = f"iteration-{iteration}.rank-{comm.rank}-of-{comm.size}.{_checksum(file)}.npz"
            temporary.replace(self.path / name)
            _sync_folder(self.path)
        except OSError as error:
            raise self._unusable(comm, f"save iteration {iteration}", error) from None
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)

    def _remove_before(self, comm: Comm, iteration: int) -> None:
        # Files that cannot be removed are tried again after the next save. A replica may have removed them.
        with suppress(OSError, BadInput):
            mine = _own_files(comm, self._files(comm))
            older = sorted(number for number in mine if number < iteration)
            for number in older[: len(older) - (_KEEP - 1)]:
                for path in mine[number]:
                    path.unlink(missing_ok=True)


#: Path of a checkpoint; iteration, rank, and size of the group that saved it.
_File = tuple[Path, int, int, int]


def _own_files(comm: Comm, files: list[_File]) -> dict[int, list[Path]]:
    """This rank's files by iteration."""
    found: dict[int, list[Path]] = {}
    for path, iteration, rank, size in files:
        if (rank, size) == (comm.rank, comm.size):
            found.setdefault(iteration, []).append(path)
    return found


def _process(comm: Comm) -> str:
    """Part of an unfinished file's name that identifies the process. Replicas of a rank may share a folder."""
    return f"rank-{comm.rank}-of-{comm.size}.replica-{comm.replica}"


def _whole(iteration: int) -> int:
    """Check an iteration's number: a file with another form of name would never be found."""
    return whole(iteration, "iteration", 0, _ITERATION_LIMIT - 1)


def _refuse_different(numbers: npt.NDArray[np.int64]) -> None:
    """Raise on all ranks if they save different iterations."""
    (others,) = np.nonzero(numbers != numbers[0])
    if others.size:
        saves = f"rank 0 saves iteration {numbers[0]}, rank {others[0]} iteration {numbers[others[0]]}"
        raise BadInput(f"{saves}: all ranks must save the same")


@contextmanager
def _errors_name(call: str) -> Iterator[None]:
    """Make errors of internal calls name the call that the user made."""
    try:
        yield
    except SkyphosError as error:
        if type(error) in (Mismatch, SkyphosError):
            raise type(error)(f"in {call}: {error}") from error
        raise


def _array(comm: Comm, name: str, value: npt.ArrayLike) -> npt.NDArray[Any]:
    if not isinstance(name, str):
        raise BadInput(f"rank {comm.rank}: {name!r} names an array and is not a str")
    try:
        if isinstance(value, np.matrix):
            raise BadInput("a numpy.matrix would come back as an array: pass np.asarray(x)")
        array = as_numpy(value, repr(name))
    except (BadInput, RuntimeError) as error:
        raise BadInput(f"rank {comm.rank}: {name!r} is not an array of numbers and cannot be saved: {error}") from None
    kind = array.dtype
    if kind.hasobject or (not _is_recorded(kind) and name_of(kind) is None):
        raise BadInput(f"rank {comm.rank}: {name!r} is not an array of numbers and cannot be saved (dtype {kind})")
    return array


def _is_recorded(dtype: np.dtype[Any]) -> bool:
    """True if NumPy's file format records the dtype; of other packages' types it records only the size."""
    try:
        return np.lib.format.descr_to_dtype(np.lib.format.dtype_to_descr(dtype)) == dtype
    except (TypeError, ValueError):
        return False


def _numbered(arrays: dict[str, npt.NDArray[Any]]) -> dict[str, Any]:
    """Arrays under numbers, and their names as another array, because not every name is valid in an archive. Types that
    NumPy's format does not record are stored by name, and their arrays as bytes."""
    names = {"names": np.frombuffer(json.dumps(list(arrays)).encode(), np.uint8)}
    types = {str(k): array.dtype.name for k, array in enumerate(arrays.values()) if not _is_recorded(array.dtype)}
    if types:
        names["types"] = np.frombuffer(json.dumps(types).encode(), np.uint8)
    for k, array in enumerate(arrays.values()):
        names[f"array{k}"] = array.view(f"V{array.itemsize}") if str(k) in types else array
    return names


def _checksum(file: IO[bytes]) -> str:
    file.seek(0)
    found = hashlib.blake2b(digest_size=_DIGITS // 2)
    while chunk := file.read(1 << 20):
        found.update(chunk)
    return found.hexdigest()


def _read(paths: list[Path] | None) -> dict[str, npt.NDArray[Any]] | None:
    """The saved state, from the first of these files that is complete."""
    for path in paths or []:
        match = _FILE_NAME.fullmatch(path.name)
        try:
            with open(path, "rb") as file:
                if match is None or _checksum(file) != match[4]:
                    continue
                file.seek(0)
                with np.load(file, allow_pickle=False) as arrays:
                    names = json.loads(arrays["names"].tobytes())
                    types = json.loads(arrays["types"].tobytes()) if "types" in arrays else {}
                    found = {name: arrays[f"array{k}"] for k, name in enumerate(names)}
            for k, kind in types.items():
                found[names[int(k)]] = found[names[int(k)]].view(_extension_type(kind, path))
            return found
        except _Unreadable:
            raise
        except Exception:
            # The file was removed meanwhile, cannot be read, or is not a checkpoint despite its name (NumPy raises
            # errors of many kinds). The other ranks will receive that this rank has none.
            continue
    return None


class _Unreadable(BadInput):
    """A complete checkpoint that cannot be read here: to continue from an earlier one would lose work."""


def _extension_type(name: str, path: Path) -> np.dtype[Any]:
    try:
        return type_named(name)
    except (ImportError, ValueError):
        text = f"{path}: has arrays of {name}, a type of the package ml_dtypes: install it on all ranks"
        raise _Unreadable(text) from None


def _sync_folder(path: Path) -> None:
    """Flush a folder to the disk, and with it the names of its files."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
