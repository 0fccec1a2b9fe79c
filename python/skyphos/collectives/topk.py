"""TopK: top-k sparsification with error feedback."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from .. import _skyphos as native
from ..errors import BadInput
from ..inputs.arguments import Op, as_array, resolve_op
from ..inputs.arrays import as_numpy, require_floats
from ..inputs.settings import whole
from ..vectors.kinds import open_vector
from ..vectors.sparse_vector import SparseVector
from ..work import perform
from .agreement import collective
from .allreduce import Algorithm, options_of
from .quantize import Quantize, check_bits, check_seed
from .vector_input import native_vector, vector_of

if TYPE_CHECKING:
    from ..comm import Comm

__all__ = ["TopK"]

_Array = npt.NDArray[Any]


#: Number of quantised values that share a scale.
_QUANTISED_TOGETHER = 1024


class TopK:
    """Choose the largest values of each gradient and add the rest to the next gradient: Top-k SGD.

    A TopK stores the residual of one array of parameters on one rank. Each call adds the gradient to it, removes the
    values of largest magnitude from the sum, and stores the rest: ``acc = residual + gradient``, send
    ``Q(topk(acc))``, ``residual = acc - topk(acc)``.

    Parameters
    ----------
    k : int, optional
        Number of values to choose of every ``bucket``, or of all. Give this or ``threshold``.
    bucket : int or None, default 512
        Choose the k largest of every ``bucket`` consecutive values (and of the last ones); None: the k largest of all.
    bits : {2, 4, 8} or None
        Bits of unbiased quantisation of sent values: 1,024 chosen values share a scale, their largest magnitude. (With
        the Euclidean length the noise of 1,024 values would exceed the values, and feedback would diverge.) None:
        values are sent unquantised.
    feedback : bool or "quantised", default True
        True: values that are not chosen stay in the residual. "quantised": errors of quantisation are added to it too.
        False: there is no residual.
    seed : int, default 0
        Seed of the random numbers of quantisation.
    threshold : float, optional
        Choose all values of at least this magnitude instead of k.

    Raises
    ------
    BadInput
        For k below 1 or above the bucket, bits other than 2, 4, 8, both or neither of k and threshold, or a threshold
        that is negative or NaN.

    Notes
    -----
    SparCML (Renggli et al. 2019), Algorithm 1 and appendix C: with a learning rate of 1, subtracting the mean of what
    all ranks sent gives a view v of the parameters, and v - x is the mean residual, where x are the parameters after
    all gradients in full (eq. 5): exact up to rounding without ``bits`` or with ``feedback="quantised"``, else in
    expectation.

    Among equal magnitudes the one at the lower index is chosen. NaN counts as larger than all numbers, so it is always
    chosen, and appears in the sum as in a dense one; with ``bits`` it is refused.

    A TopK can be pickled; :meth:`state_dict` returns its state as plain values.

    Examples
    --------
    >>> import numpy as np, skyphos as sky
    >>> topk = sky.TopK(k=1, bucket=None)
    >>> topk.compress(np.array([0.5, -2.0, 1.0])).values
    array([-2.])
    >>> topk.residual
    array([0.5, 0. , 1. ])
    >>> topk.compress(np.array([0.0, 0.0, 1.0])).to_dense()
    array([0., 0., 2.])
    """

    def __init__(
        self,
        k: int | None = None,
        *,
        bucket: int | None = 512,
        bits: Literal[2, 4, 8] | None = None,
        feedback: bool | Literal["quantised"] = True,
        seed: int = 0,
        threshold: float | None = None,
    ) -> None:
        if (k is None) == (threshold is None):
            raise BadInput("give either k or threshold")
        k = None if k is None else whole(k, "k", 1, 2**63 - 1)
        bucket = None if bucket is None else whole(bucket, "bucket", 1, 2**32 - 1)
        if k is not None and bucket is not None and k > bucket:
            raise BadInput(f"k={k} is more than the bucket of {bucket} values: bucket=None chooses k of all")
        if threshold is not None and not threshold >= 0:
            raise BadInput(f"threshold must be a number that is not negative, not {threshold}")
        check_feedback(bits, feedback)
        check_seed(seed)
        self._k, self._bucket, self._threshold = k, bucket, threshold
        self._bits, self._feedback, self._seed = bits, feedback, seed
        self._residual: _Array | None = None
        self._steps = 0

    @property
    def residual(self) -> _Array | None:
        """The values not sent yet, in the gradient's shape (this object's own memory); None before the first one."""
        return self._residual

    @property
    def steps(self) -> int:
        """Number of gradients so far."""
        return self._steps

    def compress(self, gradient: Any, *, rank: int = 0) -> SparseVector:
        """Add a gradient to the residual, and remove and return the values to send. Not collective.

        Parameters
        ----------
        gradient : array or torch tensor of float16, bfloat16, float32 or float64
            Of any shape; shape and dtype must be the same in each call. It is not changed.
        rank : int
            With ``bits``: ranks with the same seed pass different numbers, such as ``comm.rank``, so that their errors
            are independent.

        Returns
        -------
        SparseVector
            The chosen values, by index in the flattened gradient; quantised ones as decoded from their codes.

        Raises
        ------
        BadInput
            For another shape or dtype than before, integers, and with ``bits`` NaN or infinity. The residual is then
            not changed.

        Examples
        --------
        >>> import numpy as np, skyphos as sky
        >>> sky.TopK(threshold=1.0).compress(np.array([[0.5, -2.0], [1.0, 0.0]])).indices
        array([1, 2], dtype=uint32)
        """
        array, _ = self._open(gradient)
        indices, picked = self._take(array)
        if self._bits is not None:
            exact, quantize = picked.copy(), Quantize(self._bits, _QUANTISED_TOGETHER, "input", "max", self._seed)
            try:
                native.topk_quantise(picked, quantize._native(), self._steps, whole(rank, "rank", 0, 2**32 - 1))
            except BaseException:
                self._restore(indices, exact)
                raise
            self._put_back(indices, exact, picked)
        self._steps += 1
        return SparseVector._of(indices, picked, None, array.size)

    @collective(argument=1)
    def allreduce(
        self,
        comm: Comm,
        gradient: Any,
        *,
        op: Op = "sum",
        algorithm: Algorithm = "auto",
        dense: bool = False,
        async_op: bool = False,
    ) -> Any:
        """Reduce the values that all ranks choose from their gradients; every rank gets the result. Collective.

        Parameters
        ----------
        comm : Comm
            The group; every rank has a TopK with the same settings.
        gradient : array or torch tensor
            As in :meth:`compress`.
        op : {"sum", "mean"} or any other operation, if ``bits`` is None
            As in :meth:`Comm.allreduce`.
        algorithm : str
            An algorithm of :meth:`Comm.allreduce` for sparse vectors.
        dense : bool
            Return the gradient's kind and shape, with zeros where no rank sent a value.
        async_op : bool
            Return a :class:`Work` immediately; its ``wait()`` returns the result, and adds quantisation errors to the
            residual. The gradient may be changed immediately.

        Returns
        -------
        SparseVector, or with ``dense`` an array or tensor.

        Raises
        ------
        BadInput
            On all ranks, as in :meth:`compress`.
        Mismatch
            If ranks passed gradients of different sizes or dtypes, or different settings.

        Notes
        -----
        SparCML, Algorithm 1: with ``bits`` values are sent quantised, as with ``Quantize(where="input")``. If the call
        fails after its start, the chosen values are added back to the residual, which then includes the gradient: do
        not pass that gradient again.

        Examples
        --------
        >>> import numpy as np, skyphos as sky
        >>> topk = sky.TopK(k=1, bucket=2, bits=4, feedback="quantised")
        >>> with sky.init() as comm:
        ...     topk.allreduce(comm, np.array([1.0, 7.0, -7.0, 3.0]), dense=True)
        array([ 0.,  7., -7.,  0.])
        """
        array, back = self._open(gradient)
        operation = resolve_op(op)
        quantize = None
        if self._bits is not None:
            quantize = Quantize(self._bits, _QUANTISED_TOGETHER, "input", "max", self._seed)
        options = options_of(algorithm, quantize=quantize, tell_sent=quantize is not None)
        indices, picked = self._take(array)
        mine = SparseVector._of(indices, picked, None, array.size)
        work = reduce_chosen(
            comm,
            mine,
            operation,
            options,
            on_sent=lambda sent: self._put_back(indices, picked, sent),
            restore=lambda: self._restore(indices, picked),
            finish=lambda reduced, _: back(reduced.to_dense().reshape(np.shape(gradient))) if dense else reduced,
            async_op=async_op,
        )
        self._steps += 1
        return work

    def reset(self) -> None:
        """Discard the residual."""
        self._residual = None

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state: settings, steps, and a copy of the residual.

        Examples
        --------
        >>> import numpy as np, skyphos as sky
        >>> topk = sky.TopK(k=1)
        >>> _ = topk.compress(np.array([1.0, 3.0]))
        >>> topk.state_dict()["residual"]
        array([1., 0.])
        """
        residual = None if self._residual is None else self._residual.copy()
        return {"settings": self._settings(), "steps": self._steps, "residual": residual}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of another TopK with the same settings.

        Raises
        ------
        BadInput
            If the state is invalid, or of a TopK with other settings.

        Examples
        --------
        >>> import numpy as np, skyphos as sky
        >>> topk, other = sky.TopK(k=1), sky.TopK(k=1)
        >>> _ = topk.compress(np.array([1.0, 3.0]))
        >>> other.load_state_dict(topk.state_dict())
        >>> other.residual
        array([1., 0.])
        """
        try:
            settings, steps, residual = state["settings"], operator.index(state["steps"]), state["residual"]
        except (KeyError, TypeError) as error:
            raise BadInput(f"this is not a state of a TopK: {error!r}") from None
        if settings != self._settings():
            raise BadInput(f"the state is from a TopK with {settings}, but this TopK has {self._settings()}")
        if residual is not None:
            residual = np.array(as_numpy(residual, "residual"), order="C")
            require_floats(residual.dtype, "TopK")
        self._steps, self._residual = steps, residual

    def _settings(self) -> dict[str, Any]:
        return {
            "k": self._k,
            "bucket": self._bucket,
            "bits": self._bits,
            "feedback": self._feedback,
            "seed": self._seed,
            "threshold": self._threshold,
        }

    def _open(self, gradient: Any) -> tuple[_Array, Any]:
        """The gradient as a contiguous array that fits the residual, and the conversion back to its kind."""
        array, back = open_vector(gradient)
        if not isinstance(array, np.ndarray):
            raise BadInput("a gradient is a dense array or tensor: sparse ones need no TopK")
        array = as_array(array)
        require_floats(array.dtype, "TopK")
        residual = self._residual
        if residual is not None and (residual.shape, residual.dtype) != (array.shape, array.dtype):
            raise BadInput(
                f"the gradient is {array.dtype} of shape {array.shape}, those before it were {residual.dtype} of shape "
                f"{residual.shape}: use one TopK for each array of parameters, or reset()"
            )
        if self._bits is not None and not np.isfinite(array).all():
            bad = int(np.flatnonzero(~np.isfinite(array.reshape(-1)))[0])
            value = array.reshape(-1)[bad]
            raise BadInput(f"the gradient's value at index {bad} is {value}, which cannot be quantised")
        return array, back

    def _take(self, array: _Array) -> tuple[_Array, _Array]:
        """Add a gradient to the residual, and remove the largest values from it."""
        threshold = None if self._threshold is None else np.array([self._threshold]).astype(array.dtype)
        residual = None
        if self._feedback:
            if self._residual is None:
                self._residual = np.zeros_like(array)
            residual = self._residual.reshape(-1)
        return native.topk_take(residual, array.reshape(-1), k=self._k, bucket=self._bucket, threshold=threshold)

    def _put_back(self, indices: _Array, picked: _Array, sent: _Array) -> None:
        """Add the errors of quantisation to the residual, if ``feedback`` is "quantised"."""
        if self._feedback == "quantised" and self._residual is not None:
            native.topk_put_back(self._residual.reshape(-1), indices, picked, sent)

    def _restore(self, indices: _Array, picked: _Array) -> None:
        """Add chosen values that were not sent back to the residual."""
        if self._residual is not None:
            # Later gradients may have changed these indices.
            self._residual.reshape(-1)[indices] += picked


def check_feedback(bits: int | None, feedback: object) -> None:
    """Refuse unsupported bits, and feedback that needs bits."""
    if bits is not None:
        check_bits(bits)
    if feedback not in (True, False, "quantised"):
        raise BadInput(f'feedback must be True, False or "quantised", not {feedback!r}')
    if feedback == "quantised" and bits is None:
        raise BadInput('feedback="quantised" adds errors of quantisation to the residual: give bits=, or feedback=True')


def reduce_chosen(
    comm: Comm,
    mine: SparseVector,
    op: native.Operation,
    options: native.AllreduceOptions,
    *,
    on_sent: Callable[[_Array], None],
    restore: Callable[[], None],
    finish: Callable[[SparseVector, native.Explanation], Any],
    async_op: bool,
) -> Any:
    """Reduce the chosen values of all ranks, and return ``finish(result, report)``.

    If inputs are quantised, ``on_sent`` is called with this rank's quantised values; ``restore`` is called if the call
    ends with an error.
    """
    try:
        started = native.allreduce(comm._native, native_vector(mine), op, options, bool(async_op))
    except BaseException:
        restore()
        raise

    def finish_all(done: native.Allreduced) -> Any:
        if done.sent is not None:
            on_sent(done.sent)
        return finish(vector_of(done.sum, mine), done.explanation)

    return perform(started, async_op, finish_all, restore)
