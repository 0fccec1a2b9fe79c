"""Collectives on simulated clusters: the same code, under a virtual clock."""

from .network import Network
from .run import USED_BY, Phase, Round, Simulation, collectives, simulate

__all__ = ["USED_BY", "Network", "Phase", "Round", "Simulation", "collectives", "simulate"]
