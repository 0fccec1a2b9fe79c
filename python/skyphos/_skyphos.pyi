"""The native half, checked against the binary by ``mypy.stubtest``. ``_native/`` has a stub for each source file."""

from ._native.allgather import Gathered, allgather
from ._native.allreduce import Allreduced, AllreduceOptions, allreduce, allreduce_dense, allreduce_plain
from ._native.alltoall import alltoall, scatter
from ._native.blocks import BlockExchange, exchange_blocks
from ._native.broadcast import Broadcasted, BroadcastOptions, broadcast
from ._native.comm import Comm, Connected, connect_mpi, connect_tcp, local, mpi_end, mpi_is_there, mpi_prepare_end
from ._native.configure import ConfigureOptions, IndexSets
from ._native.errors import wire_of_leaving
from ._native.gather import gather
from ._native.health import Health
from ._native.keyed import KeyTable, key_places, list_of, strings_of, words_of
from ._native.messages import MessageStatus, ReceivedMessage, ReceiveInto, fail_send, probe, probe_now, recv, send
from ._native.move_arrays import ArrayMove, alltoall_uneven, move_arrays
from ._native.op import Operation
from ._native.outer_product import (
    FactorEntries,
    GatheredFactors,
    OuterOptions,
    OuterReport,
    OuterShape,
    SparseOuterSum,
    add_product,
    outer_factors,
    outer_product_sum,
    sparse_outer_factors,
    sparse_outer_product_sum,
)
from ._native.plan import LayerVolume, Plan, PlanStats
from ._native.planner import (
    UnionModel,
    auto_may_take,
    default_profile,
    greedy_degrees,
    predict_agreement,
    predict_plans,
    predict_reductions,
    union_entries,
)
from ._native.probe import (
    ReceivedFlow,
    StreamReport,
    begin_with,
    fan,
    get_profile,
    kernel_times,
    overhead,
    ping,
    set_profile,
    stream,
)
from ._native.quantize import Quantize
from ._native.reduce import reduce
from ._native.reduce_arrays import reduce_arrays
from ._native.reduce_scatter import Scattered, reduce_scatter
from ._native.report import Explanation, PlanPrediction, Prediction, RoutePrediction, Stage, TimedAlgorithm, Traffic
from ._native.simulate import SimulatedPhase, SimulatedRound, simulate, simulated_collectives, simulated_hosts
from ._native.topk import TopkLayer, dequantise, topk_put_back, topk_quantise, topk_take, topk_take_layers
from ._native.topk_allreduce import TopkSum, topk_allreduce
from ._native.vector import Vector
from ._native.work import Work

__all__ = [
    "AllreduceOptions",
    "Allreduced",
    "ArrayMove",
    "BlockExchange",
    "BroadcastOptions",
    "Broadcasted",
    "Comm",
    "ConfigureOptions",
    "Connected",
    "Explanation",
    "FactorEntries",
    "Gathered",
    "GatheredFactors",
    "Health",
    "IndexSets",
    "KeyTable",
    "LayerVolume",
    "MessageStatus",
    "Operation",
    "OuterOptions",
    "OuterReport",
    "OuterShape",
    "Plan",
    "PlanPrediction",
    "PlanStats",
    "Prediction",
    "Quantize",
    "ReceiveInto",
    "ReceivedFlow",
    "ReceivedMessage",
    "RoutePrediction",
    "Scattered",
    "SimulatedPhase",
    "SimulatedRound",
    "SparseOuterSum",
    "Stage",
    "StreamReport",
    "TimedAlgorithm",
    "TopkLayer",
    "TopkSum",
    "Traffic",
    "UnionModel",
    "Vector",
    "Work",
    "add_product",
    "allgather",
    "allreduce",
    "allreduce_dense",
    "allreduce_plain",
    "alltoall",
    "alltoall_uneven",
    "auto_may_take",
    "begin_with",
    "broadcast",
    "connect_mpi",
    "connect_tcp",
    "default_profile",
    "dequantise",
    "exchange_blocks",
    "fail_send",
    "fan",
    "gather",
    "get_profile",
    "greedy_degrees",
    "kernel_times",
    "key_places",
    "list_of",
    "local",
    "move_arrays",
    "mpi_end",
    "mpi_is_there",
    "mpi_prepare_end",
    "outer_factors",
    "outer_product_sum",
    "overhead",
    "ping",
    "predict_agreement",
    "predict_plans",
    "predict_reductions",
    "probe",
    "probe_now",
    "recv",
    "reduce",
    "reduce_arrays",
    "reduce_scatter",
    "scatter",
    "send",
    "set_profile",
    "simulate",
    "simulated_collectives",
    "simulated_hosts",
    "sparse_outer_factors",
    "sparse_outer_product_sum",
    "stream",
    "strings_of",
    "topk_allreduce",
    "topk_put_back",
    "topk_quantise",
    "topk_take",
    "topk_take_layers",
    "union_entries",
    "wire_of_leaving",
    "words_of",
]
