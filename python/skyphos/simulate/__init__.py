"""Collectives on simulated clusters: the same code, under a virtual clock."""

from .network import Network
from .run import LOOKED_AT, Phase, Round, Simulation, collectives, simulate

__all__ = ["LOOKED_AT", "Network", "Phase", "Round", "Simulation", "collectives", "simulate"]
