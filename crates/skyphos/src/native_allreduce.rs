//! The MPI library's own allreduce of dense arrays: the groups that have it, and those where it may be faster than ours.

use skyphos_core::Endpoint;
use skyphos_tune::Algorithm;
use skyphos_types::{DType, Error, ReduceOp, Result};

/// Refuses the MPI library's allreduce where the group's transport has none.
pub(crate) fn check_native(algorithm: Algorithm, ep: &Endpoint, op: &ReduceOp, dtype: DType) -> Result<()> {
    if algorithm != Algorithm::DenseMpi || ep.has_allreduce(op, dtype) {
        return Ok(());
    }
    let why = match ep.node().transport_name() {
        "mpi" if ep.size() < ep.node().size() => {
            format!("it runs on all {} ranks of the first group, not on {}", ep.node().size(), ep.size())
        }
        "mpi" => {
            format!("MPI has no operation equal to {:?} on {dtype}", op.name())
        }
        other => format!("it needs transport=\"mpi\", not {other:?}"),
    };
    Err(Error::bad_input(format!(
        "algorithm={:?} is the MPI library's own allreduce: {why}; algorithm=\"auto\" picks one that fits",
        algorithm.name()
    )))
}

/// Whether the MPI library's allreduce may be faster than ours. On one host ours takes half as long as MPICH's
/// (`bench/mpi.py`).
pub(crate) fn native_may_be_faster(ep: &Endpoint, op: &ReduceOp, dtype: DType) -> bool {
    !ep.node().on_one_host() && ep.has_allreduce(op, dtype)
}
