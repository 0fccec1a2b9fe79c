"""Inputs that no collective takes, and inputs of ranks that do not fit together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import skyphos as sky
from collectives_support import vector
from conftest import on_all


def test_ranks_that_differ_are_named() -> None:
    def body(comm: sky.Comm) -> list[str]:
        said = []
        for x, call in [
            (vector(comm.rank, n=1000 + comm.rank // 2), comm.allreduce),
            (vector(0, dtype=["float32", "float64"][comm.rank // 2]), comm.allreduce),
            (vector(0), comm.allgather if comm.rank == 2 else comm.reduce),
        ]:
            with pytest.raises(sky.Mismatch) as caught:
                call(x)
            said.append(str(caught.value))
        return said

    for n, dtype, calls in on_all(3, body):
        assert "n=1000" in n
        assert "n=1001" in n
        assert "float32" in dtype
        assert "float64" in dtype
        assert "allgather" in calls
        assert "reduce(" in calls


@pytest.mark.parametrize(
    "call",
    [
        lambda comm, x: comm.allreduce(x),
        lambda comm, x: comm.allreduce(x, async_op=True).wait(),
        lambda comm, x: comm.reduce(x),
        lambda comm, x: comm.reduce_scatter(x),
        lambda comm, x: comm.allgather(x),
        lambda comm, x: comm.gather(x),
        lambda comm, x: comm.alltoall([x, x]),
        lambda comm, x: comm.scatter([x, x], like=x),
    ],
)
def test_matrices_of_other_shapes_are_refused(call: Any) -> None:
    """Matrices are sent as vectors, whose lengths may agree. A matrix of one row may be combined with a vector."""
    scipy_sparse = pytest.importorskip("scipy.sparse")
    entries = np.arange(6.0)

    def body(comm: sky.Comm, shapes: Any) -> None:
        x = scipy_sparse.csr_array(entries.reshape(shapes[comm.rank]))
        with pytest.raises(sky.Mismatch):
            call(comm, x)
        comm.barrier()

    for shapes in [((2, 3), (3, 2)), ((1, 6), (6, 1)), ((6, 1), (2, 3))]:
        on_all(2, lambda comm, shapes=shapes: body(comm, shapes))
    on_all(2, lambda comm: call(comm, scipy_sparse.csr_array(entries.reshape(2, 3))))
    row = scipy_sparse.csr_array(entries.reshape(1, 6))
    on_all(2, lambda comm: call(comm, row if comm.rank else sky.SparseVector.from_dense(entries)))


def test_masks_of_converted_arrays_are_found() -> None:
    class Shows:
        def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
            return np.ma.array([1.0, 2.0], mask=[True, False])

    def body(comm: sky.Comm) -> None:
        for call in (comm.allreduce, comm.allgather, lambda x: comm.shuffle([0, 0], x)):
            with pytest.raises(sky.BadInput, match="masked array"):
                call(Shows())

    on_all(2, body)


def test_other_objects_are_refused_by_all() -> None:
    def body(comm: sky.Comm) -> str:
        with pytest.raises(sky.BadInput) as caught:
            comm.allreduce("text" if comm.rank else vector(0))
        return str(caught.value)

    assert all("not str" in text for text in on_all(2, body))
