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

# Variables for profile, learning and topology. A group of one uses none of the three unless it is set or passed.
_PROFILE_VARIABLES = ("SKYPHOS_PROFILE", "SKYPHOS_ADAPT", "SKYPHOS_TOPOLOGY")

_HEARTBEAT_S = 10.0

# Non-empty once this process has been warned of misspelt variables.
_warned: list[bool] = []

# Largest in-process group: each rank needs a thread of the caller.
_MAX_LOCAL_RANKS = 4096


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
    """Join the group in which this process was started.

    Rank and size come from the arguments, else from the launcher's environment
    (:func:`skyphos.launch.bootstrap.discover`): ``skyphos run``, ``torchrun``, Slurm, MPI's process managers. Without
    any, the group has one rank; a warning is given if other variables suggest that there are more processes.

    Parameters
    ----------
    rank, world_size : int, optional
        This process's number and the size of the group.
    rendezvous : "host:port", optional
        Address at which rank 0 listens.
    token : str, optional
        Shared secret; a process without it is refused.
    transport : {"tcp", "mpi"}, optional
        TCP, or the MPI library of this process, the environment or SKYPHOS_LIBMPI. Default: MPI under ``mpiexec``, and
        under ``srun`` with a process manager if there is a library, unless a rendezvous is named; else TCP. Over MPI
        only ``timeout``, ``threads``, ``profile``, ``adapt`` and ``topology`` have an effect, there is no token and no
        encryption, and a lost rank ends the job.
    timeout : float, default 300.0
        Seconds without progress after which making the group, or a call, fails.
    threads : int, optional
        Threads that merge large messages. Default: SKYPHOS_THREADS, or the host's cores divided by its ranks.
    socket_buffer : int, optional
        Size of the sockets' buffers in bytes; default: the kernel's autotuning.
    congestion_control : str, optional
        TCP's congestion control, by the system's name (``"cubic"``, ``"bbr"``). Default: the system's, but Cubic or
        Reno instead of BBR if a round trip takes less than 5 ms: BBR adapts too slowly to flows that start and
        stop within milliseconds.
    heartbeat : float, default 10.0
        Seconds (at least 2) without an answer from another host after which its ranks are lost: the host is down, or
        the link is cut. A rank that is only slow or stopped is not lost, because its kernel answers. The end of a
        process is noticed immediately.
    profile : Profile, Measured or path, optional
        Measurements of machines and network by ``skyphos probe``, from which ``algorithm="auto"`` starts; times of
        calls refine them. Rank 0's argument counts for all ranks. Default: the file in SKYPHOS_PROFILE (``none``: no
        file); else the user's own, if it was measured on these hosts; else built-in values. A profile of other hosts
        gives a warning. A group of one uses only a profile that is named.
    adapt : bool, optional
        Whether ``algorithm="auto"`` learns from calls: if several algorithms are predicted to take about equally long,
        at most the first 25 calls of a kind try them, and later calls use the fastest, as long as the size of the data
        does not change. False: it uses only data and profile, so each run of a program adds in the same order. Rank 0's
        argument counts for all ranks. Default: True, or False if SKYPHOS_ADAPT is ``0``.
    topology : Topology, path or re.Pattern, optional
        Hosts of the ranks and racks of the hosts, for layers of butterflies and the order of broadcasts: a
        :class:`skyphos.Topology`, a file of hosts and their racks (:meth:`skyphos.Topology.load`), a file of ``skyphos
        probe``, or a regular expression whose groups extract the rack from a host's name, compiled or as
        ``"names:r([0-9]+)n"`` (:meth:`skyphos.Topology.by_names`). Rank 0's argument counts for all ranks. Default:
        SKYPHOS_TOPOLOGY, a file or ``names:…`` (``none``: no topology); else the racks in the profile, if it is of
        these hosts; else the hosts that the transport distinguishes, in one rack.
    replication : int, default 1
        Processes of each rank, s: the group has m = P // s ranks, and processes i, m + i, 2m + i … are replicas of rank
        i (Kylix §V). Replicas have the same data and make the same calls, and share the traffic of each message. The
        group works as long as one replica of each rank is alive; a stopped replica is left behind, a slow one costs
        time. Results are bitwise the same on all replicas. The remaining P - s m processes are additional replicas of
        the first ranks. Replicas must run the same program: data that depend on times or unseeded random numbers
        differ, which is detected. ``adapt`` is then False. See :attr:`Comm.replica` and :meth:`Comm.health`.
    share_hosts : bool, default False
        Whether replicas of a rank may be on one host, for tests: the loss of that host would lose the rank. By default
        this is refused.
    shared_memory : bool, optional
        Whether ranks of one host in a TCP group exchange data through shared memory, if both ranks and the system
        allow it (processes of one user that see each other); else through sockets. Default: True, or False if
        SKYPHOS_SHARED_MEMORY is ``0``.
    tls : TLS, optional
        Certificates for encrypted connections between ranks (:class:`skyphos.TLS`). Default: the files in
        SKYPHOS_TLS_AUTHORITY, SKYPHOS_TLS_CERTIFICATE and SKYPHOS_TLS_KEY; without them there is no encryption.

    Returns
    -------
    Comm

    Raises
    ------
    BadInput
        If settings are partial or contradict each other; if a profile is damaged; if a topology is of other ranks or
        lacks a host; if replicas of a rank are on one host (the text has the numbering to use); if certificates are
        invalid.
    Timeout
        If ranks are missing; names them.
    Refused
        If the token is wrong, the rank is taken, or ranks have different TLS settings.

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
    if _listen_fd is not None:  # rank 0 of an engine's group (skyphos.engines) already has a listening socket
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
            # A group of one has no peers, but must refuse the same settings as larger groups.
            _skyphos.connect_tcp(options)
        alone = _skyphos.local(1, timeout, threads, 1)[0]
        named = any(given is not None for given in (profile, adapt, topology, *map(variables.text, _PROFILE_VARIABLES)))
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
    """Warn once, on rank 0, of variables whose names are similar to those of settings."""
    if process.rank == 0 and not _warned:
        _warned.append(True)
        variables.warn_of_typing_errors()


# Variable in which the process of a rank records itself; processes that it starts inherit it.
_TAKEN = "SKYPHOS_TAKEN"


def _refuse_child(process: Bootstrap) -> None:
    """Refuse a rank that this process's parent already is: a rank has only one process."""
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
    """Make a group inside this process, for tests and notebooks: one Comm per rank.

    Use each Comm from a thread of its own: its calls wait for those of the others, so in a single thread the first one
    would never return. :meth:`LocalGroup.run` makes these threads. With ``replication`` there is a Comm for each of
    ``size`` processes, with several processes per rank (:func:`init`).

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
    size = whole(size, "the number of ranks of a group inside one process", 1, _MAX_LOCAL_RANKS)
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
        raise BadInput(f"replication={replication} needs at least {replication} processes; {processes} {how}")


def _goes_over_mpi(process: Bootstrap, rendezvous: str | None) -> bool:
    if process.launcher not in ("mpi", "slurm") or rendezvous is not None or variables.text("SKYPHOS_RENDEZVOUS"):
        return False
    return mpi.is_chosen(process)


def _check_over_mpi(process: Bootstrap, rank: int | None, replication: int, tls: TLS | None) -> None:
    """Refuse settings that groups over MPI do not support."""
    if rank is not None:
        raise BadInput("rank= and world_size= are for TCP, because MPI numbers its processes itself: leave them out")
    if process.launcher not in ("mpi", "slurm", "alone"):
        raise BadInput(
            f"over MPI processes are started by mpiexec or srun; {process.launcher} has started these, "
            'and MPI would take each for a group of one: transport="tcp"'
        )
    if replication != 1:
        raise BadInput('replication survives lost processes, but MPI does not: use transport="tcp"')
    if tls_files(tls) is not None:
        raise BadInput('MPI does not encrypt: use transport="tcp" with tls= or SKYPHOS_TLS_*, or remove these settings')


def _shares_memory(asked: bool | None) -> bool:
    named = variables.flag("SKYPHOS_SHARED_MEMORY") if asked is None else truth(asked, "shared_memory")
    return named is not False
