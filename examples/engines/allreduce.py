"""One allreduce, under any launcher (docs/engines.md).

    skyphos run -n 4 examples/engines/allreduce.py
    torchrun --nproc-per-node 4 examples/engines/allreduce.py
    srun -n 4 python examples/engines/allreduce.py
    mpiexec -n 4 python examples/engines/allreduce.py

Each rank has a value for an index of its own, and one for an index that all ranks have.
"""

import numpy as np

import skyphos as sky

with sky.init(timeout=60) as comm:
    x = sky.SparseVector([comm.rank, 1_000_000], np.array([1.0, comm.rank]), n=1_000_001)
    y = comm.allreduce(x)

    ranks = np.arange(comm.size)
    assert y.indices.tolist() == [*ranks, 1_000_000], y
    assert y.values.tolist() == [*np.ones(comm.size), ranks.sum()], y
    if comm.rank == 0:
        print(f"the sum of {comm.size} ranks over {comm.transport} is right: {y.nnz} of {y.n} entries")
