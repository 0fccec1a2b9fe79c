"""Checkpoints: the state of each rank after an iteration, on disk, from which a group continues with the same bits.

Each rank writes one file under a temporary name, and renames it when it is complete on the disk. The name ends in a
checksum of the content, so a damaged file is recognised and is no checkpoint. An iteration counts when all ranks have
it complete: on restoring, ranks agree on the last such iteration. Older ones are removed only after all ranks have
written a newer one, so a group that dies while it writes still has the one before. All hosts may share the folder, or
each may have its own.

Replicas of a rank need the same files. A replica that finds other files than its siblings raises, or the group fails as
it does when replicas hold different data. Which processes raise is not certain, because ranks agree here and not
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

#: Iterations that are kept whole.
_KEEP = 2

#: Hexadecimal digits of a checksum in a name.
_DIGITS = 32

_NAMED = re.compile(r"iteration-(\d{1,18})\.rank-(\d+)-of-(\d+)\.([0-9a-f]{32})\.npz")

#: Iterations end here: their digits must match the name.
_MOST = 10**18


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
    """Saves the state of all ranks every so many iterations.

    Parameters
    ----------
    path : str or path
        A folder, made if it is not there; of one program only. ``~`` is the user's home.
    every : int, default 1
        Iterations from one checkpoint to the next.

    Raises
    ------
    BadInput
        ``every`` is below 1, or there is no such user as ``path`` names.

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
        """Whether :meth:`save` would write this iteration.

        Raises
        ------
        BadInput
            ``iteration`` is no whole number, or not from 0 to 10^18 - 1.

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
            Its number, 0 or more, the same on all ranks.
        state : mapping of str to array_like
            The arrays that :meth:`restore` returns: numbers in any shape, of NumPy's types, or of those of the
            package ``ml_dtypes`` (bfloat16, float8 …). A sparse vector or tensor is saved as its arrays.

        Returns
        -------
        bool
            Whether it was due.

        Raises
        ------
        BadInput
            A file cannot be written, something in ``state`` is no array of numbers, ``iteration`` is no whole number,
            or ranks save different ones; on all ranks.
        Mismatch
            Other ranks are in another call; so it is where ``iteration`` is due on some ranks only.
        """
        if not self.is_due(iteration):
            return False
        number = _whole(iteration)
        with _named(f"Checkpoint.save of iteration {number}"):
            _refuse_different(gather_numbers(comm, number))
            together(comm, lambda: self._write(comm, number, state))
            # All have this one whole now.
            self._remove_before(comm, number)
        return True

    @collective(argument=1)
    def restore(self, comm: Comm) -> Restored | None:
        """This rank's state after the last iteration that all ranks have complete; None if there is none. Collective.

        A group continues only from a checkpoint of as many ranks. Where a group of another size has saved a later
        iteration, this raises, because to continue from an earlier one would silently discard the work since then.
        Older ones of other sizes do no harm.

        Raises
        ------
        BadInput
            A folder cannot be read, or its checkpoint is from a group of another size; on all ranks. Replicas of this
            rank have different files: one may have returned, and learns of it in its next call.
        """
        with _named("Checkpoint.restore"):
            try:
                return self._restore(comm)
            except SkyphosError as error:
                # With other files a replica takes other steps; which of both is found first is chance.
                differ = isinstance(error, Mismatch) or "put different data" in str(error)
                if comm.replication == 1 or not differ:
                    raise
                me = f"rank {comm.rank}, replica {comm.replica}"
                why = "not the checkpoints that another replica of this rank has: give both the same files"
                raise BadInput(f"{me}: {self.path}: {why}") from error

    def _restore(self, comm: Comm) -> Restored | None:
        files = together(comm, lambda: self._files(comm))
        mine = _of(comm, files)
        below = _MOST
        while True:
            # The last that each rank has below the last one tried; then the least of those, if all have it whole.
            last = max((iteration for iteration in mine if iteration < below), default=-1)
            below = int(gather_numbers(comm, last).min())
            state = together(comm, partial(_read, mine.get(below)))
            if below < 0 or gather_numbers(comm, int(state is not None)).all():
                break
        together(comm, lambda: self._refuse_later(comm, below, files))
        if below < 0:
            return None
        assert state is not None
        return Restored(below, state)

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
            if unfinished.fullmatch(name):  # by a process that was killed: this one is not writing now
                with suppress(OSError):
                    (self.path / name).unlink()
        matches = [_NAMED.fullmatch(name) for name in names]
        return [(self.path / m[0], int(m[1]), int(m[2]), int(m[3])) for m in matches if m]

    def _refuse_later(self, comm: Comm, iteration: int, files: list[_File]) -> None:
        """Raise if groups of other sizes were further than ``iteration``, this group's last (-1: it has none)."""
        last: dict[int, int] = {}
        for _, number, _, size in files:
            last[size] = max(number, last.get(size, -1))
        last.pop(comm.size, None)
        if not any(number > iteration for number in last.values()):
            return
        there = " and ".join(f"iteration {last[size]} saved by a group of {size} ranks" for size in sorted(last))
        ours = f"{comm.size} and {'no whole iteration' if iteration < 0 else f'iteration {iteration}'}"
        do = "start as many ranks, name another folder, or remove the files of the others (…-of-N.…)"
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
        self._files(comm)  # makes room: unfinished files of a killed process may be as large
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
        # Files that cannot be removed now are tried again after the next save. A replica may have removed them.
        with suppress(OSError, BadInput):
            mine = _of(comm, self._files(comm))
            older = sorted(number for number in mine if number < iteration)
            for number in older[: len(older) - (_KEEP - 1)]:
                for path in mine[number]:
                    path.unlink(missing_ok=True)


#: Where a checkpoint is; iteration, rank, and ranks of the group that saved it.
_File = tuple[Path, int, int, int]


def _of(comm: Comm, files: list[_File]) -> dict[int, list[Path]]:
    """This rank's files by iteration."""
    found: dict[int, list[Path]] = {}
    for path, iteration, rank, size in files:
        if (rank, size) == (comm.rank, comm.size):
            found.setdefault(iteration, []).append(path)
    return found


def _process(comm: Comm) -> str:
    """A process's part in the name of a file that it has not finished. Replicas of a rank may share a folder."""
    return f"rank-{comm.rank}-of-{comm.size}.replica-{comm.replica}"


def _whole(iteration: int) -> int:
    """An iteration's number, checked: a file under another name would never be found."""
    return whole(iteration, "iteration", 0, _MOST - 1)


def _refuse_different(numbers: npt.NDArray[np.int64]) -> None:
    """Raise on all ranks if they save different iterations."""
    (others,) = np.nonzero(numbers != numbers[0])
    if others.size:
        saves = f"rank 0 saves iteration {numbers[0]}, rank {others[0]} iteration {numbers[others[0]]}"
        raise BadInput(f"{saves}: all ranks must save the same")


@contextmanager
def _named(call: str) -> Iterator[None]:
    """Make errors of internal calls name the call that the user made."""
    try:
        yield
    except SkyphosError as error:
        if type(error) in (Mismatch, SkyphosError):
            raise type(error)(f"in {call}: {error}") from error
        raise


def _array(comm: Comm, name: str, value: npt.ArrayLike) -> npt.NDArray[Any]:
    if not isinstance(name, str):
        raise BadInput(f"rank {comm.rank}: {name!r} names an array and is no str")
    try:
        if isinstance(value, np.matrix):
            raise BadInput("a numpy.matrix would come back as an array: pass np.asarray(x)")
        array = as_numpy(value, repr(name))
    except (BadInput, RuntimeError) as error:
        raise BadInput(f"rank {comm.rank}: {name!r} is no array of numbers and cannot be saved: {error}") from None
    kind = array.dtype
    if kind.hasobject or (not _is_kept(kind) and name_of(kind) is None):
        raise BadInput(f"rank {comm.rank}: {name!r} is no array of numbers and cannot be saved (dtype {kind})")
    return array


def _is_kept(dtype: np.dtype[Any]) -> bool:
    """Whether NumPy's file format records the dtype: of types from other packages it records only the size."""
    try:
        return np.lib.format.descr_to_dtype(np.lib.format.dtype_to_descr(dtype)) == dtype
    except (TypeError, ValueError):
        return False


def _numbered(arrays: dict[str, npt.NDArray[Any]]) -> dict[str, Any]:
    """Arrays under numbers, and their names as one more: not every name can be one in an archive. Types that a file of
    NumPy's does not tell are named beside, and their arrays are bytes."""
    names = {"names": np.frombuffer(json.dumps(list(arrays)).encode(), np.uint8)}
    types = {str(k): array.dtype.name for k, array in enumerate(arrays.values()) if not _is_kept(array.dtype)}
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
        named = _NAMED.fullmatch(path.name)
        try:
            with open(path, "rb") as file:
                if named is None or _checksum(file) != named[4]:
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
            # It was removed meanwhile, or cannot be read; or it is no checkpoint though its name says so, which NumPy
            # tells by errors of all kinds. The others will hear that this rank has none.
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
    """A file's name is on the disk once its folder is."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
