"""Measurements of a group's machines and network (``skyphos probe``)."""

from .measure import measure_machine, probe

__all__ = ["measure_machine", "probe"]
