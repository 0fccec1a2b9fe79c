"""Comm: a group of ranks and its collectives."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from .collectives.agreement import collective
from .collectives.allgather import allgather
from .collectives.allreduce import allreduce
from .collectives.alltoall import alltoall
from .collectives.broadcast import broadcast
from .collectives.configure import configure, configure_reduce
from .collectives.fuse import fuse
from .collectives.gather import gather
from .collectives.outer_product import outer_product_sum
from .collectives.plan import Stats
from .collectives.point_to_point import iprobe, irecv, isend, probe, recv, send, sendrecv
from .collectives.reduce import reduce
from .collectives.reduce_scatter import owned_range, reduce_scatter
from .collectives.scatter import scatter
from .collectives.topk_allreduce import topk_allreduce
from .health import Health, health_of
from .inputs.arguments import as_rank
from .inputs.settings import truth, whole
from .launch.exit_handlers import close_failed, close_later
from .planning.planner import Profile, profile_of
from .planning.topology import Topology
from .shuffle.collective import shuffle
from .work import Work, perform

if TYPE_CHECKING:
    from . import _skyphos
    from .shuffle.stages import Stages

__all__ = ["Comm"]


class Comm:
    """A group of ranks: made by :func:`skyphos.init`, :func:`skyphos.local` or :meth:`split`.

    Methods are collective: every rank calls the same ones in the same order, and an error on one rank is raised on all.
    Not collective are the properties, :meth:`address`, :meth:`close`, :meth:`fuse`, :meth:`health`,
    :meth:`owned_range` and point-to-point messages (:meth:`send`, :meth:`recv`, :meth:`probe` and variants). Every
    collective except :meth:`split`, :meth:`dup` and :meth:`shrink` takes ``async_op=True`` and then returns a
    :class:`Work`; the order is that of the calls, not of their completion. Calls on one Comm from several threads run
    in an undefined order, so give each thread a group of its own (:meth:`dup`). A context manager closes the group at
    its end.
    """

    # Collectives, each in a module of its name. Functions of a class are its methods: ``comm`` is self there.
    allgather = allgather
    allreduce = allreduce
    alltoall = alltoall
    broadcast = broadcast
    configure = configure
    configure_reduce = configure_reduce
    fuse = fuse
    gather = gather
    outer_product_sum = outer_product_sum
    reduce = reduce
    reduce_scatter = reduce_scatter
    scatter = scatter
    shuffle = shuffle
    topk_allreduce = topk_allreduce

    # Point-to-point messages.
    iprobe = iprobe
    irecv = irecv
    isend = isend
    probe = probe
    recv = recv
    send = send
    sendrecv = sendrecv

    owned_range = owned_range

    def __init__(self, native: _skyphos.Comm) -> None:
        self._native = native
        self._stats = Stats(0.0, 0.0, 0.0)
        self._stages: Stages | None = None  # of shuffles
        close_later(self)

    def __repr__(self) -> str:
        state = f", replica {self.replica}" if self.replication > 1 else ""
        state += ", closed" if self._native.closed else ""
        return f"Comm(rank {self.rank} of {self.size}, {self.transport}{state})"

    def __getattr__(self, name: str) -> Any:
        """Raise for unknown names; for MPI's names the error gives Skyphos's."""
        from .mpi_names import equivalent_of

        here = equivalent_of(name)
        ours = (here or "").partition("(")[0].partition(",")[0]
        if ours.startswith("comm.") and not hasattr(type(self), ours.removeprefix("comm.")):
            here = None  # this version has no equivalent
        raise AttributeError(f"Comm has no attribute {name!r}{f': here it is {here}' if here else ''}")

    def __enter__(self) -> Comm:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            close_failed(self, error)

    @classmethod
    def from_mpi4py(cls, comm: Any, *, timeout: float = 300.0, threads: int | None = None) -> Comm:
        """Make a group of the processes of an mpi4py communicator, over MPI. Collective in the communicator.

        Messages use a duplicate of the communicator, in the library that mpi4py has loaded; both can be used together.

        Parameters
        ----------
        comm : mpi4py.MPI.Intracomm
            The communicator; ranks of the group are numbered as in it.
        timeout, threads
            As in :func:`skyphos.init`.

        Returns
        -------
        Comm

        Raises
        ------
        BadInput
            If ``comm`` is not an intracommunicator of mpi4py, or is ``MPI.COMM_NULL``.
        Timeout
            If not all of its processes make the call.

        Examples
        --------
        >>> import skyphos as sky
        >>> from mpi4py import MPI  # doctest: +SKIP
        >>> group = sky.Comm.from_mpi4py(MPI.COMM_WORLD)  # doctest: +SKIP
        """
        from . import mpi
        from .launch.bootstrap import discover

        begin = (None, None, None)
        native = mpi.join(mpi.handle_of(comm), discover(), timeout=timeout, threads=threads, begin=begin)
        return mpi.remember(cls(native))

    @property
    def rank(self) -> int:
        """This process's number in the group, from 0."""
        return self._native.rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._native.size

    @property
    def transport(self) -> str:
        """The transport: ``local``, ``tcp`` or ``mpi``."""
        return self._native.transport

    @property
    def profile(self) -> Profile | None:
        """The measured profile with which ``algorithm="auto"`` started, the same on all ranks; None for the defaults.

        Groups from :meth:`split` and :meth:`dup` inherit it.
        """
        return profile_of(self._native)

    @property
    def replica(self) -> int:
        """Number of this process among the replicas of its rank, from 0 (:func:`skyphos.init`)."""
        return self._native.replica

    @property
    def replication(self) -> int:
        """The least number of processes of a rank; 1 without replicas."""
        return self._native.replication

    def health(self) -> list[Health]:
        """State of each process of the group that :func:`skyphos.init` made, by number: whether it is lost or late, and
        how many chunks of messages arrived from it first. Not collective.

        Examples
        --------
        >>> import skyphos as sky
        >>> with sky.init() as comm:
        ...     [(one.process, one.rank, one.alive) for one in comm.health()]
        [(0, 0, True)]
        """
        return health_of(self._native)

    @property
    def adapts(self) -> bool:
        """Whether ``algorithm="auto"`` learns from calls (:func:`skyphos.init`); the same on all ranks."""
        return self._native.adapts

    @property
    def topology(self) -> Topology:
        """Hosts and racks of the ranks (:func:`skyphos.init`), without measured times.

        Examples
        --------
        >>> import skyphos as sky
        >>> with sky.init() as comm:
        ...     comm.topology
        Topology(1 rank on 1 host in 1 rack)
        """
        return Topology.of(*self._native.topology)

    @property
    def stats(self) -> Stats:
        """Seconds of the last :meth:`configure` or :meth:`configure_reduce` on this rank."""
        return self._stats

    def address(self, rank: int) -> str:
        """Host and address of a rank, for messages."""
        return self._native.address(as_rank(rank, self.size))

    @overload
    def barrier(self, *, async_op: Literal[False] = False) -> None: ...
    @overload
    def barrier(self, *, async_op: Literal[True]) -> Work[None]: ...
    @collective()
    def barrier(self, *, async_op: bool = False) -> Work[None] | None:
        """Return when every rank has called this. Collective.

        With ``async_op=True`` return a :class:`Work` immediately.

        Examples
        --------
        >>> import skyphos as sky
        >>> with sky.init() as comm:
        ...     comm.barrier()
        """
        return perform(self._native.barrier(truth(async_op, "async_op")), async_op, lambda _: None)

    @collective()
    def split(self, color: int | None, key: int = 0) -> Comm | None:
        """Form groups of the ranks that pass the same color. Collective.

        Parameters
        ----------
        color : int >= 0, bool, or None
            Ranks with the same color form a group; None: this rank joins none.
        key : int
            Orders the ranks of a new group; ties are ordered by the rank in this group.

        Returns
        -------
        Comm or None
            The new group; None if ``color`` is None. It shares the connections of this one.

        Examples
        --------
        >>> import skyphos as sky
        >>> with sky.init() as comm:
        ...     even = comm.split(comm.rank % 2)
        ...     even.size
        1
        """
        # A boolean is a color too: ranks for which a condition holds, and the others.
        color = int(color) if isinstance(color, (bool, np.bool_)) else color
        color = None if color is None else whole(color, "color", 0, 2**64 - 1)
        key = whole(key, "key", -(2**63), 2**63 - 1)
        native = self._native.split(color, key)
        return None if native is None else self._derived(native)

    def _split_within(self, color: int | None) -> Comm | None:
        """Like :meth:`split`, for an internal group, whose errors use the ranks of this group."""
        native = self._native.split(color, self.rank, True)
        return None if native is None else self._derived(native)

    def dup(self) -> Comm:
        """Make a group of the same ranks with its own order of calls, for another thread or library. Collective.

        Examples
        --------
        >>> import skyphos as sky
        >>> with sky.init() as comm:
        ...     comm.dup().size
        1
        """
        group = self.split(0, self.rank)
        if group is None:
            raise RuntimeError("a rank that names a color is in a group")
        return group

    def shrink(self) -> Comm:
        """Make a group of the ranks that are not lost, in the same order. Collective among them.

        After :class:`PeerLost` this is the only call that the group can make. Every surviving rank makes it, wherever
        its program noticed the loss. Ranks that are lost meanwhile are excluded too, and all ranks that return have the
        same group. It shares the connections of this one. A restarted process can only join a new :func:`skyphos.init`
        of all ranks.

        Returns
        -------
        Comm

        Raises
        ------
        PeerLost
            If this rank cannot continue: other ranks exclude it because some of them cannot reach it; or too few take
            part to be sure that no other ranks continue without them. Ranks whose process has ended are known not to
            continue, silent ranks may. So more than half of the ranks that may be alive must take part, or half of them
            including the lowest.
        Timeout
            If ranks neither made the call nor were lost; names them. The call may be repeated, and continues.
        BadInput
            If this group was shrunk before, or has replicas: then it continues by itself until a rank has no process.

        Notes
        -----
        The lowest surviving rank asks all others, and commits when all have agreed; each rank forwards the commit
        before it continues. Checked in every order of events at small sizes
        (``crates/skyphos-core/tests/model_checks/survivors.rs``).

        Examples
        --------
        >>> import numpy as np, skyphos as sky
        >>> with sky.init() as comm:
        ...     x = np.ones(3)
        ...     while True:
        ...         try:
        ...             total = comm.allreduce(x)
        ...             break
        ...         except sky.PeerLost:
        ...             comm = comm.shrink()
        >>> total
        array([1., 1., 1.])
        """
        return self._derived(self._native.shrink())

    def _derived(self, native: _skyphos.Comm) -> Comm:
        comm = Comm(native)
        if self.transport == "mpi":
            from . import mpi

            mpi.remember(comm)
        return comm

    def close(self) -> None:
        """Leave the group: notify the peers and flush sent messages. Not collective; may be called twice.

        Raises
        ------
        SkyphosError
            In a group with replicas, if another process of this rank passed other data to one of the last calls.
        """
        # Connections stay open as long as any group that uses them.
        if self._stages is not None:
            self._stages.close()
        self._native.close()
