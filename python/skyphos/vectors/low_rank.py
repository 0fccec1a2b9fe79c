"""LowRank: a matrix stored as its factors."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _skyphos as native
from ..errors import BadInput
from ..inputs.arrays import refuse_masked

__all__ = ["LowRank"]

#: Bytes of rows of a product that are computed at a time when the whole product is not formed.
_PIECE_BYTES = 8 << 20


class LowRank:
    """The matrix ``scale * a.T @ b``, stored as factors; returned by ``comm.outer_product_sum(a, b, factors=True)``.

    ``W -= lr * G`` multiplies directly into ``W``, and ``G @ x`` and ``x @ G`` never form ``G``; :meth:`to_dense` does.

    Parameters
    ----------
    a : array of shape (K, N), or SciPy sparse array
    b : array of shape (K, M), or SciPy sparse array
        Of the dtype of ``a``: float16, bfloat16, float32 or float64.
    scale : float

    Attributes
    ----------
    shape : (N, M)
    pairs : int
        K, the number of outer products, which bounds the rank of the matrix.

    Examples
    --------
    >>> import numpy as np, skyphos as sky
    >>> G = sky.LowRank(np.array([[1.0, 2.0]]), np.array([[3.0, 4.0, 5.0]]))
    >>> G.to_dense()
    array([[ 3.,  4.,  5.],
           [ 6.,  8., 10.]])
    >>> W = np.zeros((2, 3))
    >>> W -= 0.5 * G
    >>> W
    array([[-1.5, -2. , -2.5],
           [-3. , -4. , -5. ]])
    >>> G @ np.ones(3)
    array([12., 24.])
    """

    __array_priority__ = 1000.0

    def __init__(self, a: Any, b: Any, scale: float = 1.0) -> None:
        refuse_masked(a, "a")
        refuse_masked(b, "b")
        if a.ndim != 2 or b.ndim != 2 or a.shape[0] != b.shape[0]:
            raise BadInput(f"factors of shapes {a.shape} and {b.shape} are not K rows each")
        if a.dtype != b.dtype:
            raise BadInput(f"factors have types {a.dtype} and {b.dtype}: make them one type")
        self.a = a
        self.b = b
        self.scale = float(scale)

    @property
    def shape(self) -> tuple[int, int]:
        return self.a.shape[1], self.b.shape[1]

    @property
    def dtype(self) -> np.dtype[Any]:
        kind: np.dtype[Any] = np.dtype(self.a.dtype)
        return kind

    @property
    def pairs(self) -> int:
        return int(self.a.shape[0])

    @property
    def nbytes(self) -> int:
        """Bytes of the factors."""
        return sum(getattr(x, "nbytes", None) or x.data.nbytes + x.indices.nbytes for x in (self.a, self.b))

    @property
    def is_sparse(self) -> bool:
        """Whether the factors are SciPy sparse arrays."""
        return not isinstance(self.a, np.ndarray)

    @property
    def T(self) -> LowRank:
        """The transposed matrix."""
        return LowRank(self.b, self.a, self.scale)

    def __repr__(self) -> str:
        form = ", sparse" if self.is_sparse else ""
        return f"LowRank({self.shape[0]} by {self.shape[1]}, {self.pairs} pairs, {self.dtype}{form})"

    def __mul__(self, factor: Any) -> LowRank:
        if not np.isscalar(factor) and np.ndim(factor) != 0:
            return NotImplemented
        return LowRank(self.a, self.b, self.scale * float(factor))

    __rmul__ = __mul__

    def __truediv__(self, factor: Any) -> LowRank:
        return self * (1.0 / float(factor))

    def __neg__(self) -> LowRank:
        return self * -1.0

    def __add__(self, other: Any) -> Any:
        """A low-rank matrix with the pairs of both matrices; a new array if ``other`` is an array."""
        if isinstance(other, LowRank):
            if self.shape != other.shape or self.is_sparse != other.is_sparse:
                raise BadInput(f"{self} and {other} do not fit")
            stack: Any = np.concatenate
            if self.is_sparse:
                from scipy.sparse import vstack as stack
            scaled = other.a * self.dtype.type(other.scale / self.scale) if other.scale != self.scale else other.a
            return LowRank(stack([self.a, scaled]), stack([self.b, other.b]), self.scale)
        if isinstance(other, np.ndarray):
            return self.add_to(other.copy())
        return NotImplemented

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self + (-other)

    def __matmul__(self, x: Any) -> Any:
        """``G @ x``, from the K numbers ``b @ x``."""
        return self._scaled(self.a.T @ (self.b @ x))

    def __rmatmul__(self, x: Any) -> Any:
        """``x @ G``."""
        return self._scaled((x @ self.a.T) @ self.b)

    def _scaled(self, product: Any) -> Any:
        return product if self.scale == 1.0 else product * self.dtype.type(self.scale)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        if method != "__call__" or options or len(inputs) != 2:
            return NotImplemented
        first, second = inputs
        if ufunc is np.matmul and second is self and out is None:
            return self.__rmatmul__(first)
        if ufunc is np.multiply and out is None:
            return self * (second if first is self else first)
        if ufunc not in (np.add, np.subtract) or not isinstance(first, np.ndarray):
            return NotImplemented
        target = first.copy() if out is None else out[0]
        if target is not first and out is not None:
            np.copyto(target, first)
        return (self if ufunc is np.add else -self).add_to(target)

    def add_to(self, matrix: npt.NDArray[Any], *, threads: int | None = None) -> npt.NDArray[Any]:
        """Add this matrix to an array of its shape, in place, and return it; this matrix is not formed.

        Parameters
        ----------
        matrix : array of shape (N, M)
            Any dtype and strides; arrays of the factors' type in C or Fortran order are fastest.
        threads : int, optional
            Number of threads; None: as many as this process may use.

        Examples
        --------
        >>> import numpy as np, skyphos as sky
        >>> sky.LowRank(np.ones((1, 2)), np.ones((1, 3)), scale=2).add_to(np.zeros((2, 3)))
        array([[2., 2., 2.],
               [2., 2., 2.]])
        """
        refuse_masked(matrix, "the array that a low-rank matrix is added to")
        if not isinstance(matrix, np.ndarray) or matrix.shape != self.shape:
            found = f"of shape {matrix.shape}" if isinstance(matrix, np.ndarray) else f"but {type(matrix).__name__}"
            raise BadInput(f"{self} adds to an array of shape {self.shape}, not {found}")
        if not matrix.flags.writeable:
            raise BadInput("the array that a low-rank matrix is added to must be writable")
        if self.is_sparse:
            product = (self.a.T @ self.b).tocoo()
            rows, cols = product.coords
            np.add.at(matrix, (rows, cols), self._scaled(product.data))
            return matrix
        if matrix.flags.f_contiguous and not matrix.flags.c_contiguous:
            self.T.add_to(matrix.T, threads=threads)
            return matrix
        plain = matrix.flags.c_contiguous and matrix.flags.aligned and matrix.dtype == self.dtype
        if plain and self.dtype.name in ("float32", "float64"):
            a, b = np.ascontiguousarray(self.a), np.ascontiguousarray(self.b)
            count = len(os.sched_getaffinity(0)) if threads is None else threads
            shape = native.OuterShape(*self.shape, self.pairs)
            native.add_product(a, b, matrix, shape, self.scale, count)
            return matrix
        wide = np.dtype(np.float32) if self.dtype.itemsize == 2 else self.dtype
        a, b = self.a.astype(wide, copy=False), self.b.astype(wide, copy=False)
        step = max(1, _PIECE_BYTES // max(1, self.shape[1] * wide.itemsize))
        for start in range(0, self.shape[0], step):
            piece = a[:, start : start + step].T @ b
            here = matrix[start : start + step]
            here[...] = here.astype(np.result_type(wide, here.dtype) if here.dtype.kind == "f" else wide) + (
                piece * wide.type(self.scale)
            )
        return matrix

    def to_dense(self, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """The matrix as an array of shape (N, M), in ``out`` if that is given.

        Examples
        --------
        >>> import numpy as np, skyphos as sky
        >>> sky.LowRank(np.eye(2), np.eye(2)).to_dense()
        array([[1., 0.],
               [0., 1.]])
        """
        if out is None:
            return self.add_to(np.zeros(self.shape, self.dtype))
        out[...] = 0
        return self.add_to(out)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("a low-rank matrix becomes an array only by a copy")
        return self.to_dense() if dtype is None else self.to_dense().astype(dtype, copy=False)
