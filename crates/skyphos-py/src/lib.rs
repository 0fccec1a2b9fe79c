//! The extension module `skyphos._skyphos`: converts arguments, releases the GIL, calls the Rust
//! library. It has no algorithms; docstrings for users are in `python/skyphos`.

#![deny(unsafe_code)]

mod allgather;
mod allreduce;
mod alltoall;
mod arrays;
mod blocks;
mod broadcast;
mod comm;
mod configure;
mod errors;
mod gather;
mod health;
#[allow(unsafe_code, reason = "arrays over memory of Rust")]
mod host_memory;
mod indices;
mod keyed;
mod log_records;
mod messages;
mod move_arrays;
mod op;
mod outer_product;
#[allow(unsafe_code, reason = "memory of arrays, used without the GIL")]
mod owned;
mod plan;
mod planner;
mod probe;
mod quantize;
mod reduce;
mod reduce_arrays;
mod reduce_scatter;
mod report;
mod simulate;
mod topk;
mod topk_allreduce;
mod vector;
mod work;

use pyo3::prelude::*;

// Results are large and short-lived. This allocator reuses their memory, so that the next result needs no new pages.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The native half of the Python package.
#[pymodule]
mod _skyphos {
    use numpy::PyArrayMethods;
    use pyo3::prelude::*;

    /// Looks up NumPy's functions now: objects may still use them while the interpreter shuts down, when a look-up would fail.
    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let array = numpy::PyArray1::<u8>::zeros(module.py(), 0, false);
        drop(array.readonly());
        crate::log_records::install();
        Ok(())
    }

    #[pymodule_export]
    use crate::allgather::{Gathered, allgather};
    #[pymodule_export]
    use crate::allreduce::{AllreduceOptions, Allreduced, allreduce, allreduce_dense, allreduce_plain};
    #[pymodule_export]
    use crate::alltoall::{alltoall, scatter};
    #[pymodule_export]
    use crate::blocks::{BlockExchange, exchange_blocks};
    #[pymodule_export]
    use crate::broadcast::{BroadcastOptions, Broadcasted, broadcast};
    #[pymodule_export]
    use crate::comm::{
        Comm, Connected, connect_mpi, connect_tcp, local, mpi_end, mpi_is_there, mpi_prepare_end,
    };
    #[pymodule_export]
    use crate::configure::{ConfigureOptions, IndexSets};
    #[pymodule_export]
    use crate::errors::wire_of_leaving;
    #[pymodule_export]
    use crate::gather::gather;
    #[pymodule_export]
    use crate::health::Health;
    #[pymodule_export]
    use crate::keyed::{KeyTable, key_places, list_of, strings_of, words_of};
    #[pymodule_export]
    use crate::messages::{
        MessageStatus, ReceiveInto, ReceivedMessage, fail_send, probe, probe_now, recv, send,
    };
    #[pymodule_export]
    use crate::move_arrays::{ArrayMove, alltoall_uneven, move_arrays};
    #[pymodule_export]
    use crate::op::Operation;
    #[pymodule_export]
    use crate::outer_product::{
        FactorEntries, GatheredFactors, OuterOptions, OuterReport, OuterShape, SparseOuterSum, add_product,
        outer_factors, outer_product_sum, sparse_outer_factors, sparse_outer_product_sum,
    };
    #[pymodule_export]
    use crate::plan::{LayerVolume, Plan, PlanStats};
    #[pymodule_export]
    use crate::planner::{
        UnionModel, auto_may_take, default_profile, greedy_degrees, predict_agreement, predict_plans,
        predict_reductions, union_entries,
    };
    #[pymodule_export]
    use crate::probe::{
        ReceivedFlow, StreamReport, begin_with, fan, get_profile, kernel_times, overhead, ping, set_profile,
        stream,
    };
    #[pymodule_export]
    use crate::quantize::Quantize;
    #[pymodule_export]
    use crate::reduce::reduce;
    #[pymodule_export]
    use crate::reduce_arrays::reduce_arrays;
    #[pymodule_export]
    use crate::reduce_scatter::{Scattered, reduce_scatter};
    #[pymodule_export]
    use crate::report::{
        Explanation, PlanPrediction, Prediction, RoutePrediction, Stage, TimedAlgorithm, Traffic,
    };
    #[pymodule_export]
    use crate::simulate::{SimulatedPhase, SimulatedRound, simulate, simulated_collectives, simulated_hosts};
    #[pymodule_export]
    use crate::topk::{TopkLayer, dequantise, topk_put_back, topk_quantise, topk_take, topk_take_layers};
    #[pymodule_export]
    use crate::topk_allreduce::{TopkSum, topk_allreduce};
    #[pymodule_export]
    use crate::vector::Vector;
    #[pymodule_export]
    use crate::work::Work;
}
