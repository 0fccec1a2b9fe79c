"""The configured butterfly, which delivers the sums at each rank's own indices: less than an allreduce.

`butterfly_plan` reduces with indices configured beforehand (values only on the wire, configuring not timed);
`butterfly_once` configures and reduces in one pass.
"""

from __future__ import annotations

from typing import ClassVar

from ..data import Array, Data
from .sky_group import OverSkyphos

Pair = tuple[Array, Array]


class ButterflyOnce(OverSkyphos):
    """`comm.configure_reduce`."""

    kind: ClassVar[str] = "partial"

    def prepare(self, data: Data) -> Pair:
        indices, values = data.sparse()
        return indices.copy(), values.copy()

    def run(self, given: Pair) -> Pair:
        indices, values = given
        return indices, self.comm.configure_reduce(indices, indices, values, n=self.place.n, op=self.place.op)

    def answer(self, result: Pair) -> Pair:
        return result


class ButterflyPlan(ButterflyOnce):
    """`plan.reduce`."""

    def prepare(self, data: Data) -> Pair:
        indices, values = super().prepare(data)
        if not hasattr(self, "plan"):
            self.plan = self.comm.configure(indices, indices, n=self.place.n)
        return indices, values

    def run(self, given: Pair) -> Pair:
        indices, values = given
        return indices, self.plan.reduce(values, op=self.place.op)
