"""The planner: profiles of machines and networks, predicted times, topologies, explanations."""

from .planner import (
    PlanPrediction,
    Prediction,
    Profile,
    Stage,
    greedy_degrees,
    predict_agreement,
    predict_allreduce,
    predict_plans,
    predict_reduce_scatter,
    union_entries,
)
from .topology import Topology

__all__ = [
    "PlanPrediction",
    "Prediction",
    "Profile",
    "Stage",
    "Topology",
    "greedy_degrees",
    "predict_agreement",
    "predict_allreduce",
    "predict_plans",
    "predict_reduce_scatter",
    "union_entries",
]
