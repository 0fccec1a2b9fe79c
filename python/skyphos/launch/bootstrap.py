"""Bootstrap: a process finds its rank, the size of its group, and the rendezvous.

:func:`discover` is a pure function of its arguments and the environment. It opens nothing and does
not wait. The first of these that is set counts:

1. explicit arguments;
2. ``SKYPHOS_RANK``, ``SKYPHOS_WORLD_SIZE``, ``SKYPHOS_RENDEZVOUS``, ``SKYPHOS_TOKEN``: ``skyphos run``;
3. ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR``, ``MASTER_PORT``: ``torchrun``, or set by hand;
4. ``SLURM_PROCID``, ``SLURM_NTASKS``, ``SLURM_STEP_NODELIST``: ``srun``;
5. ``PMI_RANK``, ``PMI_SIZE`` or ``OMPI_COMM_WORLD_RANK``, ``OMPI_COMM_WORLD_SIZE``: ``mpiexec``;
6. none: a group of one.

An empty variable counts as not set. Settings that are partial or contradict each other raise
:class:`~skyphos.errors.BadInput` with the name of the variable, because a process that guesses would wait for
ranks that do not exist.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..errors import BadInput
from ..inputs import variables
from ..inputs.settings import whole
from .hostlist import first_host, tasks_on_node

__all__ = ["Bootstrap", "discover", "sign_of_job", "split_address"]

# Ports for Slurm jobs: above the well-known ones, below the range from which Linux takes ports for outgoing
# connections (32768 and up), so that no such connection can hold the port already.
_SLURM_FIRST_PORT = 10_000
_SLURM_PORTS = 20_000


@dataclass(frozen=True)
class Bootstrap:
    """Rank of a process, size of its group, and rendezvous.

    Attributes
    ----------
    rank, world_size : int
        This process's rank and the group's size: ``0 <= rank < world_size``.
    rendezvous : str or None
        ``host:port`` at which rank 0 listens; None only in a group of one, and under ``mpiexec``, which sets none.
    token : str or None
        Shared secret that all ranks must show; not part of ``repr``.
    local_rank, local_size : int
        This process's number among the ranks of this host, and their number. If the launcher does not set them: rank
        and size of the group if the rendezvous is on the loopback, else 0 and 1.
    launcher : str
        Source of the settings: ``explicit``, ``skyphos``, ``torchrun``, ``environment``, ``slurm``, ``mpi`` or
        ``alone``.
    listen_fd : int or None
        On rank 0 of a ``skyphos run`` group: a socket that already listens at the rendezvous.
    """

    rank: int
    world_size: int
    rendezvous: str | None = None
    token: str | None = field(default=None, repr=False)
    local_rank: int = 0
    local_size: int = 1
    launcher: str = "alone"
    listen_fd: int | None = None


def discover(
    rank: int | None = None,
    world_size: int | None = None,
    rendezvous: str | None = None,
    token: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
) -> Bootstrap:
    """Find this process's rank, the size of its group, and the rendezvous.

    Parameters
    ----------
    rank, world_size : int, optional
        Given together or not at all; they take precedence over the environment.
    rendezvous : str, optional
        ``host:port`` (``[address]:port`` for IPv6) at which rank 0 listens; takes precedence over the environment.
    token : str, optional
        Shared secret; default ``SKYPHOS_TOKEN``.
    environ : mapping of str to str, optional
        Where to look; default ``os.environ``.

    Returns
    -------
    Bootstrap

    Raises
    ------
    BadInput
        If settings are partial, contradict each other or are out of range; names the argument or variable.

    Examples
    --------
    >>> from skyphos.launch import discover
    >>> alone = discover(environ={})
    >>> alone.rank, alone.world_size, alone.launcher
    (0, 1, 'alone')
    >>> env = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "7000"}
    >>> found = discover(environ=env)
    >>> found.rank, found.world_size, found.rendezvous, found.launcher
    (1, 2, '127.0.0.1:7000', 'environment')
    >>> discover(environ={"RANK": "1"})
    Traceback (most recent call last):
    ...
    skyphos.errors.BadInput: RANK is set but WORLD_SIZE is not: set both or neither
    """
    env = _Environment(os.environ if environ is None else environ)
    for name, value in (("rendezvous", rendezvous), ("token", token)):
        if value is not None and not isinstance(value, str):
            raise BadInput(f"{name} must be text, not {value!r}")
    token = token or env.text("SKYPHOS_TOKEN")
    if (rank is None) != (world_size is None):
        given, absent = ("rank", "world_size") if world_size is None else ("world_size", "rank")
        raise BadInput(f"{given}= is given but {absent}= is not: give both or neither")
    if rank is not None and world_size is not None:
        return _explicit(env, rank, world_size, rendezvous, token)
    for read in (_from_skyphos, _from_torch, _from_slurm, _from_mpi):
        process = read(env, rendezvous, token)
        if process is not None:
            return process
    for name, value in (("rendezvous=", rendezvous), ("SKYPHOS_RENDEZVOUS", env.text("SKYPHOS_RENDEZVOUS"))):
        if value:
            raise BadInput(f"{name} is given but no rank: set SKYPHOS_RANK and SKYPHOS_WORLD_SIZE too")
    return Bootstrap(rank=0, world_size=1, token=token)


def split_address(address: str, name: str = "rendezvous") -> tuple[str, int]:
    """Split ``host:port`` or ``[ipv6]:port`` into its two parts.

    Parameters
    ----------
    address : str
        The address.
    name : str
        Name of the address in error messages.

    Returns
    -------
    (str, int)
        Host without brackets, and port.

    Raises
    ------
    BadInput
        If there is no host, or the port is not a number from 1 to 65535.

    Examples
    --------
    >>> from skyphos.launch.bootstrap import split_address
    >>> split_address("[::1]:7000")
    ('::1', 7000)
    """
    host, colon, port = address.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not bare or (":" in bare and bare is host):
        raise BadInput(f"{name} must be host:port (IPv6 as [address]:port), not {address!r}")
    return bare, _port(port, name)


#: Variables in which launchers that are not supported here set the rank.
_RANKS = ("PMIX_RANK", "PALS_RANKID", "FLUX_TASK_RANK", "JSM_NAMESPACE_RANK", "MV2_COMM_WORLD_RANK", "ALPS_APP_PE")

#: Variables of batch systems: the number of processes of a job.
_SIZES = ("SLURM_NTASKS", "PBS_NP", "LSB_DJOB_NUMPROC", "FLUX_JOB_SIZE")

#: Variables that give a rendezvous or local size, but no rank.
_PARTIAL = ("SKYPHOS_RENDEZVOUS", "MASTER_ADDR", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")


def sign_of_job(environ: Mapping[str, str] | None = None) -> str | None:
    """Evidence that a launcher started several ranks, although :func:`discover` finds a group of one; None without any.

    Examples
    --------
    >>> from skyphos.launch.bootstrap import sign_of_job
    >>> sign_of_job({"SLURM_NTASKS": "8"})
    'SLURM_NTASKS is 8: a launcher starts ranks (srun, mpiexec, skyphos run)'
    >>> sign_of_job({}) is None
    True
    """
    env = _Environment(os.environ if environ is None else environ)
    for name in _RANKS:
        if env.text(name) is not None:
            return f"{name} is set, by a launcher that is not known here: pass rank=, world_size= and rendezvous="
    for name in _SIZES:
        text = env.text(name) or ""
        if text.isdigit() and int(text) > 1:
            return f"{name} is {text}: a launcher starts ranks (srun, mpiexec, skyphos run)"
    for name in _PARTIAL:
        if env.text(name) is not None:
            return f"{name} is set: set SKYPHOS_RANK and SKYPHOS_WORLD_SIZE too, or RANK and WORLD_SIZE"
    return None


class _Environment:
    """Reads variables; each error names the variable."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def text(self, name: str) -> str | None:
        return variables.text(name, self._environ)

    def first(self, *names: str) -> str | None:
        return next((value for value in map(self.text, names) if value is not None), None)

    def number(self, name: str) -> int | None:
        value = self.text(name)
        return None if value is None else _number(value, name)

    def pair(self, rank_name: str, size_name: str) -> tuple[int, int] | None:
        """A rank and a size; None when neither is set."""
        rank, size = self.number(rank_name), self.number(size_name)
        if rank is None and size is None:
            return None
        if rank is None or size is None:
            here, absent = (rank_name, size_name) if size is None else (size_name, rank_name)
            raise BadInput(f"{here} is set but {absent} is not: set both or neither")
        _check_pair(rank, size, rank_name, size_name)
        return rank, size


def _explicit(env: _Environment, rank: int, world_size: int, rendezvous: str | None, token: str | None) -> Bootstrap:
    rank, world_size = (
        whole(value, name, -(2**63), 2**63) for name, value in (("rank", rank), ("world_size", world_size))
    )
    _check_pair(rank, world_size, "rank", "world_size")
    address = _address(env, rendezvous, world_size, 'give rendezvous="host:port"')
    # SKYPHOS_LISTEN_FD is not taken: that socket belongs to the launcher's group, not to this one.
    return _bootstrap("explicit", (rank, world_size), address, token, None)


def _from_skyphos(env: _Environment, rendezvous: str | None, token: str | None) -> Bootstrap | None:
    pair = env.pair("SKYPHOS_RANK", "SKYPHOS_WORLD_SIZE")
    if pair is None:
        return None
    listen_fd = env.number("SKYPHOS_LISTEN_FD")
    if listen_fd is not None and (listen_fd < 0 or pair[0] != 0):
        raise BadInput(f"SKYPHOS_LISTEN_FD is {listen_fd} on rank {pair[0]}: it is an open socket, of rank 0 only")
    address = _address(env, rendezvous, pair[1], "set SKYPHOS_RENDEZVOUS=host:port")
    local = env.pair("SKYPHOS_LOCAL_RANK", "SKYPHOS_LOCAL_WORLD_SIZE")
    return _bootstrap("skyphos", pair, address, token, local, listen_fd=listen_fd)


def _from_torch(env: _Environment, rendezvous: str | None, token: str | None) -> Bootstrap | None:
    pair = env.pair("RANK", "WORLD_SIZE")
    if pair is None:
        return None
    # torchrun says "True" here when its own store listens on MASTER_PORT for the whole job. `init` asks that store
    # (launch/torchrun.py); without torch, rank 0 takes the next port.
    agent_holds_port = env.text("TORCHELASTIC_USE_AGENT_STORE") == "True"
    fix = "set MASTER_ADDR and MASTER_PORT, or SKYPHOS_RENDEZVOUS=host:port"
    address = _address(env, rendezvous, pair[1], fix, port_offset=int(agent_holds_port))
    # Some launchers set LOCAL_RANK alone; then nothing is known of the other ranks on this host.
    local = env.pair("LOCAL_RANK", "LOCAL_WORLD_SIZE") if env.text("LOCAL_WORLD_SIZE") else None
    launcher = "torchrun" if env.text("TORCHELASTIC_RUN_ID") or agent_holds_port else "environment"
    return _bootstrap(launcher, pair, address, token, local)


def _from_slurm(env: _Environment, rendezvous: str | None, token: str | None) -> Bootstrap | None:
    rank, step = env.number("SLURM_PROCID"), env.first("SLURM_STEP_ID", "SLURM_STEPID")
    if rank is None or (step is None and env.text("ENVIRONMENT") == "BATCH"):
        # A batch script that was not started by srun is one process, though sbatch gives it a SLURM_PROCID.
        return None
    size_name = "SLURM_STEP_NUM_TASKS" if env.text("SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS"
    size = env.number(size_name)
    if size is None:
        raise BadInput("SLURM_PROCID is set but SLURM_NTASKS is not: set both or neither")
    if _mpi_pair(env) not in (None, (rank, size)):
        # An mpiexec inside a Slurm job: its variables are more specific than the inherited ones of Slurm.
        return None
    _check_pair(rank, size, "SLURM_PROCID", size_name)
    if rendezvous or env.text("SKYPHOS_RENDEZVOUS") or size == 1:
        address = _address(env, rendezvous, size, "set SKYPHOS_RENDEZVOUS=host:port")
    else:
        address = _slurm_address(env, step or "0")
    local_rank, tasks = (env.number("SLURM_LOCALID"), env.first("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"))
    local = None
    if local_rank is not None and tasks is not None:
        local = local_rank, tasks_on_node(tasks, env.number("SLURM_NODEID") or 0)
    return _bootstrap("slurm", (rank, size), address, token, local)


def _slurm_address(env: _Environment, step: str) -> str:
    nodes = env.first("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    if nodes is None:
        raise BadInput("SLURM_PROCID is set but neither SLURM_STEP_NODELIST nor SLURM_JOB_NODELIST says where")
    # Every rank computes the same port; other jobs and steps on the host most likely get another one.
    job = f"{env.first('SLURM_JOB_ID', 'SLURM_JOBID') or 0}.{step}"
    return f"{first_host(nodes)}:{_SLURM_FIRST_PORT + zlib.crc32(job.encode()) % _SLURM_PORTS}"


def _from_mpi(env: _Environment, rendezvous: str | None, token: str | None) -> Bootstrap | None:
    pair = _mpi_pair(env)
    if pair is None:
        return None
    # mpiexec sets no address: MPI needs none.
    named = any(map(env.text, ("SKYPHOS_RENDEZVOUS", "MASTER_ADDR", "MASTER_PORT"))) or rendezvous is not None
    address = _address(env, rendezvous, pair[1], "") if named else None
    local = env.pair("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
    return _bootstrap("mpi", pair, address, token, local or env.pair("MPI_LOCALRANKID", "MPI_LOCALNRANKS"))


def _mpi_pair(env: _Environment) -> tuple[int, int] | None:
    return env.pair("PMI_RANK", "PMI_SIZE") or env.pair("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")


def _address(env: _Environment, rendezvous: str | None, world_size: int, fix: str, port_offset: int = 0) -> str | None:
    """The rendezvous from the argument, SKYPHOS_RENDEZVOUS or MASTER_ADDR and MASTER_PORT, checked."""
    if rendezvous is not None:
        split_address(rendezvous, "rendezvous")
        return rendezvous
    address = env.text("SKYPHOS_RENDEZVOUS")
    if address is not None:
        split_address(address, "SKYPHOS_RENDEZVOUS")
        return address
    host, port = env.text("MASTER_ADDR"), env.text("MASTER_PORT")
    if host is not None and host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if world_size == 1 and (host is None or port is None):
        return None  # there is no other rank to meet
    if host is None and port is None:
        raise BadInput(f"{world_size} ranks but no rendezvous: {fix}")
    if host is None or port is None:
        here, absent = ("MASTER_ADDR", "MASTER_PORT") if port is None else ("MASTER_PORT", "MASTER_ADDR")
        raise BadInput(f"{here} is set but {absent} is not: set both or neither")
    number = _port(port, "MASTER_PORT") + port_offset
    if number > 65_535:
        raise BadInput(f"MASTER_PORT is {port} and held by torchrun's store; the next, {number}, is not a port")
    return f"[{host}]:{number}" if ":" in host else f"{host}:{number}"


def _bootstrap(
    launcher: str,
    pair: tuple[int, int],
    address: str | None,
    token: str | None,
    local: tuple[int, int] | None,
    *,
    listen_fd: int | None = None,
) -> Bootstrap:
    rank, world_size = pair
    if local is None:
        # A rendezvous on the loopback can be reached from this host only, so all ranks are here.
        here = address is not None and _is_loopback(split_address(address)[0])
        local = (rank, world_size) if here else (0, 1)
    elif local[1] > world_size:
        raise BadInput(f"{launcher} says {local[1]} ranks on this host, but the whole group has {world_size}")
    return Bootstrap(rank, world_size, address, token, *local, launcher, listen_fd)


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _check_pair(rank: int, size: int, rank_name: str, size_name: str) -> None:
    if size < 1:
        raise BadInput(f"{size_name} is {size}: a group has at least one rank")
    if not 0 <= rank < size:
        raise BadInput(f"{rank_name} is {rank}, but {size_name} is {size}: ranks run from 0 to {size - 1}")


def _number(text: str, name: str) -> int:
    return variables.parse_whole(text, name)


def _port(text: str, name: str) -> int:
    port = _number(text, f"the port in {name}") if name != "MASTER_PORT" else _number(text, name)
    if not 1 <= port <= 65_535:
        raise BadInput(f"{name} has port {port}: ports run from 1 to 65535")
    return port
