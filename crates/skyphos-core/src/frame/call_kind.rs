//! The kinds of calls, with their codes in frames.

/// The collective of a call. Its code is part of the wire format and never changes; a new kind takes the next free one, 25. A rank
/// refuses a frame of a kind that it does not know. Codes from 32 on are calls that the library makes for itself.
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

/// The data of a call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Data {
    /// No data, or data that ranks need not agree on.
    None,
    /// Vectors or values of indices.
    Vectors,
    /// Dense arrays.
    Arrays,
    /// Vectors, or with the flag [`CallSig::ARRAYS`](super::CallSig::ARRAYS) arrays; they are moved, not reduced.
    Moved,
}

/// The meaning of [`CallSig::extra`](super::CallSig::extra).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Extra {
    Nothing,
    /// The number of a plan.
    Plan,
    /// The root.
    Root,
    /// A hash of the other arguments.
    Hash,
}

/// The meaning of the fields of a kind's signatures.
pub(super) struct Fields {
    /// The name of the call in messages to users.
    pub(super) name: &'static str,
    pub(super) data: Data,
    /// Whether the call combines values by an operation.
    pub(super) has_op: bool,
    pub(super) extra: Extra,
}

impl CallKind {
    pub(super) fn fields(self) -> Fields {
        use CallKind::*;
        let fields = |name, data, has_op, extra| Fields { name, data, has_op, extra };
        match self {
            Barrier => fields("barrier", Data::None, false, Extra::Nothing),
            Configure => fields("configure", Data::Vectors, false, Extra::Hash),
            Reduce => fields("reduce", Data::Vectors, true, Extra::Plan),
            ConfigureReduce => fields("configure_reduce", Data::Vectors, true, Extra::Hash),
            Split => fields("split", Data::None, false, Extra::Nothing),
            AllgatherBytes => fields("allgather", Data::None, false, Extra::Nothing),
            Failed => fields("a call that failed", Data::None, false, Extra::Nothing),
            Allreduce => fields("allreduce", Data::Vectors, true, Extra::Hash),
            AllreduceDense => fields("allreduce of dense arrays", Data::Arrays, true, Extra::Hash),
            ReduceScatter => fields("reduce_scatter", Data::Vectors, true, Extra::Hash),
            ReduceToRoot => fields("reduce", Data::Vectors, true, Extra::Root),
            Allgather => fields("allgather", Data::Moved, false, Extra::Hash),
            Gather => fields("gather", Data::Moved, false, Extra::Root),
            Alltoall => fields("alltoall", Data::Moved, false, Extra::Hash),
            Scatter => fields("scatter", Data::Moved, false, Extra::Root),
            TopkAllreduce => fields("topk_allreduce", Data::Vectors, true, Extra::Hash),
            ReduceScatterDense => fields("reduce_scatter of dense arrays", Data::Arrays, true, Extra::Hash),
            ReduceToRootDense => fields("reduce of dense arrays", Data::Arrays, true, Extra::Root),
            Shrink => fields("shrink", Data::None, false, Extra::Nothing),
            Broadcast => fields("broadcast", Data::None, false, Extra::Root),
            ExchangeBlocks => fields("exchange of blocks", Data::None, false, Extra::Nothing),
            OuterProduct => fields("outer_product_sum", Data::Vectors, false, Extra::Hash),
            Message => fields("message", Data::Moved, false, Extra::Nothing),
            PointToPoint => fields("point-to-point", Data::None, false, Extra::Nothing),
            Measure => fields("probe", Data::None, false, Extra::Nothing),
            Profile => fields("init", Data::None, false, Extra::Nothing),
            Agree => fields("settings", Data::None, false, Extra::Hash),
        }
    }
}
