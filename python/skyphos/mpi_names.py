"""Names of MPI and mpi4py, with their equivalents in Skyphos, for the errors of unknown attributes."""

from __future__ import annotations

__all__ = ["equivalent_of"]

_NAMES = {
    "Get_rank": "comm.rank",
    "Get_size": "comm.size",
    "Get_name": "comm.address(comm.rank)",
    "Get_processor_name": "comm.address(comm.rank)",
    "Get_group": "comm.split(color, key)",
    "Free": "comm.close()",
    "Disconnect": "comm.close()",
    "Abort": "raise SystemExit(code)",
    "Barrier": "comm.barrier()",
    "Ibarrier": "comm.barrier(async_op=True)",
    "ibarrier": "comm.barrier(async_op=True)",
    "Split": "comm.split(color, key)",
    "Create": "comm.split(color, key)",
    "Create_group": "comm.split(color, key)",
    "Split_type": "comm.split(color, key), with comm.topology.hosts",
    "Clone": "comm.dup()",
    "Dup": "comm.dup()",
    "Bcast": "comm.broadcast(x, root)",
    "bcast": "comm.broadcast(x, root)",
    "Ibcast": "comm.broadcast(x, root, async_op=True)",
    "ibcast": "comm.broadcast(x, root, async_op=True)",
    "Allreduce": "comm.allreduce(x)",
    "all_reduce": "comm.allreduce(x)",
    "Iallreduce": "comm.allreduce(x, async_op=True)",
    "iallreduce": "comm.allreduce(x, async_op=True)",
    "Reduce": "comm.reduce(x, root=0)",
    "Ireduce": "comm.reduce(x, root=0, async_op=True)",
    "Reduce_scatter": "comm.reduce_scatter(x)",
    "Reduce_scatter_block": "comm.reduce_scatter(x)",
    "Ireduce_scatter": "comm.reduce_scatter(x, async_op=True)",
    "Allgather": "comm.allgather(x)",
    "Allgatherv": "comm.allgather(x), of SparseVectors or objects of any sizes",
    "Iallgather": "comm.allgather(x, async_op=True)",
    "all_gather": "comm.allgather(x)",
    "all_gather_object": "comm.allgather(x)",
    "Gather": "comm.gather(x, root=0)",
    "Gatherv": "comm.gather(x, root=0), of SparseVectors or objects of any sizes",
    "Igather": "comm.gather(x, root=0, async_op=True)",
    "Scatter": "comm.scatter(xs, like, root=0)",
    "Scatterv": "comm.scatter(xs, root=0), of objects of any sizes",
    "Iscatter": "comm.scatter(xs, like, root=0, async_op=True)",
    "Alltoall": "comm.alltoall(xs)",
    "Alltoallv": "comm.alltoall(xs), of SparseVectors or objects of any sizes",
    "Ialltoall": "comm.alltoall(xs, async_op=True)",
    "all_to_all": "comm.alltoall(xs)",
    "Send": "comm.send(x, dest)",
    "Recv": "comm.recv(source=…)",
    "Isend": "comm.isend(x, dest)",
    "Irecv": "comm.irecv(source=…)",
    "Sendrecv": "comm.sendrecv(x, dest, source=…)",
    "Ssend": "comm.send(x, dest)",
    "ssend": "comm.send(x, dest)",
    "Bsend": "comm.isend(x, dest)",
    "bsend": "comm.isend(x, dest)",
    "Probe": "comm.probe(source=…)",
    "Iprobe": "comm.iprobe(source=…)",
    "world_size": "comm.size",
    "Scan": "comm.allgather(x) and numpy.cumsum",
    "scan": "comm.allgather(x) and numpy.cumsum",
    "Exscan": "comm.allgather(x) and numpy.cumsum",
    "exscan": "comm.allgather(x) and numpy.cumsum",
}


def equivalent_of(name: str) -> str | None:
    """The equivalent of a name of MPI or mpi4py; None without one.

    Examples
    --------
    >>> from skyphos.mpi_names import equivalent_of
    >>> equivalent_of("Get_rank"), equivalent_of("Allreduce"), equivalent_of("Win_create")
    ('comm.rank', 'comm.allreduce(x)', None)
    """
    return _NAMES.get(name)
