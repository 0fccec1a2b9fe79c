"""Groups: made from a launcher's environment, or inside this process."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace

from . import _skyphos, mpi
from .comm import Comm
from .errors import BadInput
from .inputs import variables
from .inputs.settings import real, truth, whole
from .inputs.threads import thread_count
from .launch.bootstrap import Bootstrap, discover, sign_of_job
from .launch.local_group import LocalGroup
from .launch.tcp_options import TcpOptions
from .launch.tls import TLS
from .launch.tls import files as tls_files
from .planning.profile_choice import ProfileSource, TopologySource, begin_replicated, begin_with

__all__ = ["init", "local"]

# Variables that set the start of a group. A group of one gains nothing from the user's own profile.
_BEGIN = ("SKYPHOS_PROFILE", "SKYPHOS_ADAPT", "SKYPHOS_TOPOLOGY")

_HEARTBEAT_S = 10.0

# Whether this process has been told of variables whose names are misspelt.
_warned: list[bool] = []

# Each rank of an in-process group needs a thread of the caller's.
_MOST_LOCAL = 4096


def init(
    *,
    rank: int | None = None,
    world_size: int | None = None,
    rendezvous: str | None = None,
    token: str | None = None,
    transport: str | None = None,
    timeout: float = 300.0,
    threads: int | None = None,
    socket_buffer: int | None = None,
    congestion_control: str | None = None,
    heartbeat: float = _HEARTBEAT_S,
    profile: ProfileSource | None = None,
    adapt: bool | None = None,
    topology: TopologySource | None = None,
    replication: int = 1,
    share_hosts: bool = False,
    shared_memory: bool | None = None,
    tls: TLS | None = None,
    _listen_fd: int | None = None,
) -> Comm:
    """Join the group that this process was started in.

    The place in the group comes from the arguments, or else from the launcher's environment
    (:func:`skyphos.launch.bootstrap.discover`): ``skyphos run``, ``torchrun``, Slurm, MPI's process managers. Alone it
    is a group of one; with a warning where something says that it was started with others.

    Parameters
    ----------
    rank, world_size : int, optional
        This process's number and the size of the group.
    rendezvous : "host:port", optional
        Where rank 0 listens and the others find it.
    token : str, optional
        Shared secret; a process without it is refused.
    transport : {"tcp", "mpi"}, optional
        What carries messages: TCP, or the MPI library of this process, the environment or SKYPHOS_LIBMPI. Default:
        MPI under ``mpiexec``, or under ``srun`` with one of its process managers where a library is there, unless a
        rendezvous is named; else TCP. Over MPI only ``timeout``, ``threads``, ``profile``, ``adapt`` and ``topology``
        count, there is neither token nor encryption, and a lost rank ends the job, for MPI does not survive it.
    timeout : float, default 300.0
        Seconds without any progress, in making the group or in a call, after which it fails.
    threads : int, optional
        Threads that merge large messages. Default: SKYPHOS_THREADS, or the host's cores over its ranks.
    socket_buffer : int, optional
        Bytes of the sockets' buffers; default: the kernel's autotuning.
    congestion_control : str, optional
        TCP's congestion control, by the system's name (``"cubic"``, ``"bbr"``). Default: the system's, but Cubic or
        Reno in place of BBR where a round trip takes less than 5 ms: BBR adapts too slowly to flows that start and
        stop within milliseconds.
    heartbeat : float, default 10.0
        Seconds, 2 or more, in which nothing may be heard of another host before its ranks are lost: it is down, or the
        link to it is cut. Their systems answer for ranks that are merely slow, or stopped. A process that ends is
        noticed at once.
    profile : Profile, Measured or path, optional
        What machines and network can do, as ``skyphos probe`` measured it: ``algorithm="auto"`` begins with it, and
        what calls observe refines it. Rank 0's counts for all ranks. Default: the file that SKYPHOS_PROFILE names
        (``none``: no file); else the user's own, if it is of these hosts; else defaults. A profile of other hosts
        warns once. A group of one takes only what is named.
    adapt : bool, optional
        Whether ``algorithm="auto"`` learns from calls: where several algorithms should take about as long, the first
        25 calls of a kind at most try them in turn, and the others go by the one that took least, as long as the data
        stays as large. False: it goes by data and profile alone, so each run of a program adds in the same order.
        Rank 0's counts for all ranks. Default: True, or False where SKYPHOS_ADAPT is ``0``.
    topology : Topology, path or re.Pattern, optional
        Which ranks share a host, and which hosts a rack, for layers of butterflies and the order of broadcasts:
        :class:`skyphos.Topology`, a file of hosts and their racks (:meth:`skyphos.Topology.load`), what ``skyphos
        probe`` wrote, or a regular expression whose groups tell the rack by a host's name, compiled or as
        ``"names:r([0-9]+)n"`` (:meth:`skyphos.Topology.by_names`). Rank 0's counts for all ranks. Default: what
        SKYPHOS_TOPOLOGY says, a file or ``names:…`` (``none``: nothing); else the racks that the profile in
        use has, if it is of these hosts; else hosts as the transport tells them apart, in one rack.
    replication : int, default 1
        Processes of each rank, s: the group has m = P // s ranks, and processes i, m + i, 2m + i … are replicas of
        rank i (Kylix §V). They hold the same data and make the same calls, and share out what each message takes. The
        group lives as long as one replica of each rank does; one that stops is left behind, one that is merely slow
        costs time. Results are the same bits on all replicas. What is left over of P is one more replica of the first
        ranks. Replicas need the same program: what depends on times or unseeded random numbers differs, and is found
        out. ``adapt`` is False then.
        :attr:`Comm.replica` tells them apart, :meth:`Comm.health` how they are.
    share_hosts : bool, default False
        Whether replicas of a rank may be on one host, to try things out: its end would be the rank's. Without, such
        a numbering is refused.
    shared_memory : bool, optional
        Whether TCP groups move bytes between ranks of one host through memory that the two share, where both will and
        the system lets them (processes of one user that see each other); else through sockets. Default: True, or
        False where SKYPHOS_SHARED_MEMORY is ``0``.
    tls : TLS, optional
        Certificates with which everything between ranks is encrypted (:class:`skyphos.TLS`). Default: the files that
        SKYPHOS_TLS_AUTHORITY, SKYPHOS_TLS_CERTIFICATE and SKYPHOS_TLS_KEY name; without, nothing is encrypted.

    Returns
    -------
    Comm

    Raises
    ------
    BadInput
        Settings that are partial or contradict each other; a profile that is damaged; a topology of other ranks, or
        one that says nothing of a host; replicas of a rank on one host, with the numbering to use; certificates that
        cannot be used.
    Timeout
        Ranks did not come; names them.
    Refused
        The token is wrong, the rank is taken, or another rank's settings of TLS are others.

    Examples
    --------
    >>> import skyphos as sky
    >>> with sky.init() as comm:
    ...     comm.rank, comm.size
    (0, 1)
    """
    if transport not in (None, "tcp", "mpi"):
        raise BadInput(f'transport must be "tcp" or "mpi", not {transport!r}')
    timeout, heartbeat = real(timeout, "timeout"), real(heartbeat, "heartbeat")
    socket_buffer = None if socket_buffer is None else whole(socket_buffer, "socket_buffer", 1, 2**31 - 1)
    if congestion_control is not None and not isinstance(congestion_control, str):
        raise BadInput(f"congestion_control must be a name in text, not {congestion_control!r}")
    share_hosts = truth(share_hosts, "share_hosts")
    shared_memory = _shares_memory(shared_memory)
    replication = _replication(replication)
    process = discover(rank=rank, world_size=world_size, rendezvous=rendezvous, token=token)
    if process.launcher == "alone" and (sign := sign_of_job()) is not None:
        warnings.warn(f"sky.init() makes a group of one process, though {sign}", stacklevel=2)
    _refuse_child(process)
    if _listen_fd is not None:  # rank 0 of an engine's group (skyphos.engines) has a socket that listens already
        process = replace(process, listen_fd=_listen_fd)
    if transport == "mpi" or (transport is None and _goes_over_mpi(process, rendezvous)):
        _check_over_mpi(process, rank, replication, tls)
        begin = (profile, adapt, topology)
        return mpi.remember(Comm(mpi.join(None, process, timeout=timeout, threads=threads, begin=begin)))
    threads = thread_count(threads, process.local_size)
    _check_replication(replication, process.world_size, "started")
    _warn_of_variables(process)
    certificates = tls_files(tls)
    encryption = None if certificates is None else TLS(*certificates)
    options = TcpOptions(timeout, threads, socket_buffer, congestion_control, heartbeat, encryption)
    if process.world_size == 1:
        if options != TcpOptions(timeout, threads, None, None, _HEARTBEAT_S, None):
            # A group of one has no peers, but settings that larger groups refuse are refused here too.
            _skyphos.connect_tcp(options)
        alone = _skyphos.local(1, timeout, threads, 1)[0]
        named = any(given is not None for given in (profile, adapt, topology, *map(variables.text, _BEGIN)))
        return Comm(begin_with(alone, profile, adapt, topology) if named else alone)
    if process.launcher == "torchrun" and rendezvous is None:
        from .launch import torchrun

        process = torchrun.meet(process, timeout)
    if process.rendezvous is None:
        raise BadInput(
            f"a group of {process.world_size} needs a rendezvous: pass rendezvous= or set SKYPHOS_RENDEZVOUS"
        )
    if process.listen_fd is not None and _listen_fd is None:
        # The launcher's socket belongs to this group from now on; a later init must not take it again.
        os.environ.pop("SKYPHOS_LISTEN_FD", None)
    options = replace(
        options,
        rank=process.rank,
        world_size=process.world_size,
        rendezvous=process.rendezvous,
        token=process.token,
        listen_fd=process.listen_fd,
        replication=replication,
        share_hosts=share_hosts,
        shared_memory=shared_memory,
    )
    connected = _skyphos.connect_tcp(options)
    if replication > 1:
        return Comm(begin_replicated(connected, (replication, share_hosts), profile, topology))
    return Comm(begin_with(connected.group(), profile, adapt, topology))


def _warn_of_variables(process: Bootstrap) -> None:
    """Warn once, on rank 0, of variables whose names are almost those of settings."""
    if process.rank == 0 and not _warned:
        _warned.append(True)
        variables.warn_of_typing_errors()


# The process that is the rank which the launcher's variables name: its children inherit these variables.
_TAKEN = "SKYPHOS_TAKEN"


def _refuse_child(process: Bootstrap) -> None:
    """Refuse to be a rank that this process's parent is already: a rank has only one process."""
    if process.launcher in ("alone", "explicit"):
        return
    taken = os.environ.get(_TAKEN)
    mine = f"{process.launcher} {process.rank} {process.rendezvous} {os.getpid()}"
    if taken is not None and taken != mine and taken.rsplit(" ", 1)[0] == mine.rsplit(" ", 1)[0]:
        raise BadInput(
            f"rank {process.rank} of this group is process {taken.rsplit(' ', 1)[1]} already, which has started this "
            f"one ({os.getpid()}): a group has only the processes that its launcher starts. For a group of its own "
            "pass rank=, world_size= and rendezvous= to sky.init(), or start it by skyphos run"
        )
    os.environ[_TAKEN] = mine


def local(size: int, *, timeout: float = 300.0, threads: int | None = None, replication: int = 1) -> LocalGroup:
    """Make a group inside this process, for tests and notebooks: one Comm a rank.

    Each Comm is used from a thread of its own, since its calls wait for those of the others: called one after the other
    the first would wait for ever. :meth:`LocalGroup.run` makes those threads. With ``replication`` there is a Comm for
    each of ``size`` processes, so many of them a rank (:func:`init`).

    Returns
    -------
    LocalGroup
        A list of :class:`Comm`, by rank.

    Examples
    --------
    >>> import numpy as np, skyphos as sky
    >>> sky.local(4).run(lambda comm: comm.configure_reduce([comm.rank, 9], [9], np.array([1, 10]), n=10)[0].item())
    [40, 40, 40, 40]
    """
    size = whole(size, "the number of ranks of a group inside one process", 1, _MOST_LOCAL)
    timeout, replication = real(timeout, "timeout"), _replication(replication)
    _check_replication(replication, size, "asked for")
    natives = _skyphos.local(size, timeout, thread_count(threads, size), int(replication))
    return LocalGroup([Comm(native) for native in natives])


def _replication(replication: int) -> int:
    try:
        return whole(replication, "replication", 1, 2**16 - 1)
    except BadInput:
        raise BadInput(f"replication must be a number of processes a rank, at least 1, not {replication!r}") from None


def _check_replication(replication: int, processes: int, how: str) -> None:
    if replication > processes:
        raise BadInput(f"replication={replication} needs as many processes at least; {processes} {how}")


def _goes_over_mpi(process: Bootstrap, rendezvous: str | None) -> bool:
    if process.launcher not in ("mpi", "slurm") or rendezvous is not None or variables.text("SKYPHOS_RENDEZVOUS"):
        return False
    return mpi.is_chosen(process)


def _check_over_mpi(process: Bootstrap, rank: int | None, replication: int, tls: TLS | None) -> None:
    """Refuse settings that a group over MPI cannot have."""
    if rank is not None:
        raise BadInput("rank= and world_size= are for TCP, because MPI numbers its processes itself: leave them out")
    if process.launcher not in ("mpi", "slurm", "alone"):
        raise BadInput(
            f"over MPI processes are started by mpiexec or srun; {process.launcher} has started these, "
            'and MPI would take each for alone: transport="tcp"'
        )
    if replication != 1:
        raise BadInput('replication survives lost processes, but MPI does not: use transport="tcp"')
    if tls_files(tls) is not None:
        raise BadInput('MPI does not encrypt: use transport="tcp" with tls= or SKYPHOS_TLS_*, or remove these settings')


def _shares_memory(asked: bool | None) -> bool:
    named = variables.flag("SKYPHOS_SHARED_MEMORY") if asked is None else truth(asked, "shared_memory")
    return named is not False
