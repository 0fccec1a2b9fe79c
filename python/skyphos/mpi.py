"""MPI as the transport: finding a library, connecting its processes, finalizing it."""

from __future__ import annotations

import atexit
import functools
import os
import sys
import weakref
from typing import TYPE_CHECKING, Any

from . import _skyphos
from .errors import BadInput
from .inputs.threads import named_threads
from .planning.profile_choice import ProfileSource, TopologySource, begin_with

if TYPE_CHECKING:
    from .comm import Comm
    from .launch.bootstrap import Bootstrap

__all__ = ["handle_of", "is_chosen", "join", "remember"]

# Variables by which a process manager lets MPI processes find each other.
_MANAGERS = ("PMI_RANK", "PMI_FD", "PMI_PORT", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")

_open: weakref.WeakSet[Comm] = weakref.WeakSet()


def _candidates() -> list[str]:
    """Where to look for a library, in order: files, folders of this environment, the folder next to ``mpiexec``."""
    # These imports take 10 ms, and few groups go over MPI.
    import shutil
    from importlib.util import find_spec
    from pathlib import Path

    mpiexec = shutil.which("mpiexec")
    next_to_mpiexec = [Path(mpiexec).resolve().parent.parent / "lib"] if mpiexec else []
    own = [Path(prefix) / "lib" for prefix in (sys.prefix, sys.base_prefix)]
    folders = list(dict.fromkeys(folder for folder in [*own, *next_to_mpiexec] if folder.is_dir()))
    # A process can have one MPI library only. If the program may import mpi4py later, use the library of mpi4py.
    for_mpi4py = find_spec("mpi4py") is not None and "OMPI_COMM_WORLD_SIZE" not in os.environ
    first = [folder / "libmpi.so.12" for folder in folders] if for_mpi4py else []
    return [str(path) for path in [*filter(Path.exists, first), *folders]]


def is_chosen(process: Bootstrap) -> bool:
    """True if a group whose rendezvous the user has not named uses MPI: under ``mpiexec`` and, with a process manager,
    under ``srun`` if there is a library; under ``mpiexec`` also if TCP would have no rendezvous."""
    if process.launcher == "mpi" and process.rendezvous is None:
        return True
    managed = process.launcher == "mpi" or (process.launcher == "slurm" and any(map(os.environ.get, _MANAGERS)))
    return managed and _skyphos.mpi_is_there(_candidates())


def handle_of(comm: Any) -> int:
    """The handle of mpi4py's communicator, in the library that mpi4py has loaded."""
    module = sys.modules.get("mpi4py.MPI")
    if module is None or not isinstance(comm, module.Intracomm):
        raise BadInput(f"from_mpi4py takes an mpi4py.MPI.Intracomm, not {type(comm).__name__}")
    if comm == module.COMM_NULL:
        raise BadInput("from_mpi4py was given MPI.COMM_NULL: this process is not in that communicator")
    return int(module._handleof(comm))


def _leave_before_finalize() -> None:
    """Make mpi4py's ``MPI.Finalize`` wait until no thread of this library is in MPI; else it would crash."""
    module = sys.modules.get("mpi4py.MPI")
    if module is None:
        return
    theirs = module.Finalize
    if hasattr(theirs, "__wrapped__"):
        return

    @functools.wraps(theirs)
    def finalize() -> None:
        _skyphos.mpi_prepare_end()
        theirs()

    module.Finalize = finalize  # type: ignore[attr-defined]


def join(
    comm: int | None,
    process: Bootstrap,
    *,
    timeout: float,
    threads: int | None,
    begin: tuple[ProfileSource | None, bool | None, TopologySource | None],
) -> _skyphos.Comm:
    """Join the group of an MPI communicator's processes, or of all processes; initialise MPI if necessary."""
    atexit.unregister(_end)
    atexit.register(_end)
    _leave_before_finalize()
    launched = process.world_size if process.launcher in ("mpi", "slurm") else None
    connected = _skyphos.connect_mpi(comm, launched, _candidates(), timeout, named_threads(threads))
    return begin_with(connected.group(), *begin)


def remember(comm: Comm) -> Comm:
    """Register a group to be closed at exit, before MPI is finalized."""
    _open.add(comm)
    return comm


def _end() -> None:
    for comm in list(_open):
        comm.close()
    _skyphos.mpi_end()
