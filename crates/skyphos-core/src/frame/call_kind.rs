//! The kinds of calls, with their codes in frames.

/// The collective of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::FromRepr)]
#[repr(u8)]
pub enum CallKind {
    /// `barrier`.
    Barrier = 1,
    /// `configure`.
    Configure = 2,
    /// `reduce` on a plan.
    Reduce = 3,
    /// `configure_reduce`.
    ConfigureReduce = 4,
    /// `split`.
    Split = 5,
    /// Small messages of equal length from each rank to all.
    AllgatherBytes = 6,
    /// A call that failed on this rank before it began. It matches any other call.
    Failed = 7,
    /// `allreduce` of sparse vectors.
    Allreduce = 8,
    /// `allreduce` of dense arrays.
    AllreduceDense = 9,
    /// `reduce_scatter` of sparse vectors.
    ReduceScatter = 10,
    /// `reduce` of sparse vectors.
    ReduceToRoot = 11,
    /// `allgather` of vectors.
    Allgather = 12,
    /// `gather` of vectors.
    Gather = 13,
    /// `alltoall` of vectors.
    Alltoall = 14,
    /// `scatter` of vectors.
    Scatter = 15,
    /// `topk_allreduce`.
    TopkAllreduce = 16,
    /// `reduce_scatter` of dense arrays.
    ReduceScatterDense = 17,
    /// `reduce` of dense arrays.
    ReduceToRootDense = 18,
    /// `shrink`.
    Shrink = 19,
    /// `broadcast`.
    Broadcast = 20,
    /// Blocks of bytes from each rank to each other.
    ExchangeBlocks = 21,
    /// `outer_product_sum`.
    OuterProduct = 22,
    /// An array from one rank of two to the other.
    Message = 23,
    /// A message from one rank to another: `send`, `recv` or `probe`.
    PointToPoint = 24,
    /// A measurement of `skyphos probe`.
    Measure = 32,
    /// The exchange of profiles when a group begins.
    Profile = 33,
    /// Agreement on the arguments of an operation that consists of several calls.
    Agree = 34,
}

impl CallKind {
    /// The name in messages to users.
    pub(super) fn name(self) -> &'static str {
        use CallKind::*;
        match self {
            Barrier => "barrier",
            Configure => "configure",
            Reduce => "reduce",
            ConfigureReduce => "configure_reduce",
            Split => "split",
            AllgatherBytes => "allgather",
            Failed => "a call that failed",
            Allreduce => "allreduce",
            AllreduceDense => "allreduce of dense arrays",
            ReduceScatter => "reduce_scatter",
            ReduceToRoot => "reduce",
            Allgather => "allgather",
            Gather => "gather",
            Alltoall => "alltoall",
            Scatter => "scatter",
            TopkAllreduce => "topk_allreduce",
            ReduceScatterDense => "reduce_scatter of dense arrays",
            ReduceToRootDense => "reduce of dense arrays",
            Shrink => "shrink",
            Broadcast => "broadcast",
            ExchangeBlocks => "exchange of blocks",
            OuterProduct => "outer_product_sum",
            Message => "message",
            Measure => "probe",
            Profile => "init",
            Agree => "settings",
            PointToPoint => "point-to-point",
        }
    }
}
