//! Sparse collectives for data of which each machine holds, and wants, only a part.
//!
//! ```
//! use skyphos::{Comm, ConfigureOptions};
//!
//! // Two ranks in this process; each contributes two indices and wants one.
//! let sums = Comm::local(2, &Default::default()).unwrap().map_ranks(|comm| {
//!     let options = ConfigureOptions::with_n(10);
//!     let mut plan = comm.configure([comm.rank(), 5], [5u32]).options(options).run()?;
//!     let mut got = [0.0];
//!     comm.reduce(&mut plan, &[1.0, 2.0], &mut got).run()?;
//!     Ok::<f64, skyphos::Error>(got[0])
//! });
//! assert_eq!(sums, [Ok(4.0), Ok(4.0)]);
//! ```
//!
//! Every collective is a method of [`Comm`] that returns a [`CallBuilder`]: settings by name, then
//! [`run`](CallBuilder::run) to block or [`start`](CallBuilder::start) to go on meanwhile.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod allgather;
mod allreduce;
mod allreduce_options;
mod alltoall;
mod arguments;
mod as_dense;
mod barrier;
mod broadcast;
mod call_builder;
mod comm;
mod configure;
mod decide;
mod degrees;
mod exchange_blocks;
mod explain;
mod free_memory;
mod gather;
mod group_start;
mod index_input;
mod input_checksum;
mod kernel_times;
mod kernel_timing;
mod messages;
mod move_arrays;
mod native_allreduce;
mod outer_product;
mod probe;
mod quantize;
mod reduce;
mod reduce_arrays;
mod reduce_scatter;
mod reduce_to_root;
mod replicas;
mod row_times;
mod shrink;
mod shrink_state;
mod signature;
pub mod simulate;
mod stopwatch;
mod topk_allreduce;
mod tuning;
mod vector_input;

#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing {
    //! Decoders of the messages that rank 0 sends when a group starts, for the package `fuzz`.
    use crate::group_start::{
        PROFILE_BYTES, decode_profile, decode_topology, encode_profile, encode_topology,
    };
    use skyphos_core::Topology;
    use skyphos_plan::Profile;
    use skyphos_types::Result;

    /// Profile and cores, and the profile encoded again; `None` if there are too few bytes.
    pub fn start(bytes: &[u8]) -> Option<(Option<Profile>, f64, Vec<u8>)> {
        let (profile, cores) = decode_profile(bytes.get(..PROFILE_BYTES)?);
        Some((profile, cores, encode_profile(profile)))
    }

    /// The topology, and its bytes encoded again.
    pub fn topology(bytes: &[u8]) -> Result<(Topology, Vec<u8>)> {
        decode_topology(bytes).map(|topology| (topology.clone(), encode_topology(&topology)))
    }
}

pub use allgather::{AllgatherOptions, Gathered, ScheduleChoice};
pub use allreduce::{Allreduced, ReducedArray};
pub use allreduce_options::AllreduceOptions;
pub use broadcast::{BroadcastOptions, Broadcasted};
pub use call_builder::{Body, CallBuilder, OpSetting};
pub use comm::{Comm, LocalRanks};
pub use configure::{ConfigureOptions, ConfiguredReduction, predicted_rows};
pub use exchange_blocks::{BlockExchange, IncomingBlocks, PreparedExchange};
pub use explain::Explanation;
pub use index_input::IndexInput;
pub use kernel_times::KernelTimes;
pub use move_arrays::{ArrayMove, ArrayOptions, MovedArrays};
pub use outer_product::{
    GatheredPairs, GatheredSparsePairs, OuterAlgorithm, OuterChoice, OuterOptions, OuterProduct, OuterReport,
    OuterShape, SparseFactors, SparseOuterSum, SparsePairs,
};
pub use probe::{Flows, Pairs, Received, Streamed};
pub use quantize::{QuantizeOptions, Stage};
pub use reduce::{PlanAccess, ReduceOptions, SharedPlan};
pub use reduce_scatter::Scattered;
pub use replicas::Replication;
pub use signature::{Shape, shape_of};
pub use skyphos_core::collectives::Split;
pub use skyphos_core::collectives::broadcast::{
    HostCopy, MessageBuffer, ReceiveBuffer, ReceivedPart, Route, RouteChoice,
};
pub use skyphos_core::collectives::configure::Missing;
pub use skyphos_core::collectives::exchange_blocks::BlockLimits;
pub use skyphos_core::collectives::gather::Schedule;
pub use skyphos_core::collectives::outer_product::{Level, Pairs as OuterPairs};
pub use skyphos_core::collectives::reduce::Order;
pub use skyphos_core::host::cores;
pub use skyphos_core::plan::{Considered, Plan, Stats, Volume};
pub use skyphos_core::point_to_point::{ReceiveInto, ReceivedMessage, Status};
pub use skyphos_core::transport::{Health, Loss, Transport};
pub use skyphos_core::{Call, Named, Node, Settings, Topology, Traffic, Work};
pub use skyphos_kernels::keyed;
pub use skyphos_kernels::product;
pub use skyphos_kernels::stream::{Form, IndexList, SparseVec, View};
pub use skyphos_kernels::{
    Draw, Incoming, Indices, Layer, Magnitude, Quantize, Scale, Select, dequantise, put_back,
    quantise_in_place, take_layers, take_topk, take_topk_of_sum, topk,
};
pub use skyphos_mpi as mpi;
pub use skyphos_plan as planner;
pub use skyphos_sim as sim;
pub use skyphos_tcp as tcp;
pub use skyphos_tune::{
    Algorithm, Choice, DenseThreshold, TimedAlgorithm, algorithm_of_route, auto_may_take,
};
pub use skyphos_types::{
    CustomOp, DType, Element, Error, NO_MEMBER, Real, ReduceOp, Result, bf16, f16, with_element, with_real,
};
pub use topk_allreduce::TopkSum;
pub use vector_input::{VectorInput, VectorView};
