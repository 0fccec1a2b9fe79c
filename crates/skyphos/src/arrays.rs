//! Collectives of arrays that have the same length on all ranks, but for allreduce: nothing is encoded.

use crate::Comm;
use crate::algorithm::{Algorithm, choose_dense};
use crate::arguments::of_arrays;
use crate::signature::custom_tag;
use crate::signature::{Shape, shape_hash};
use crate::vectors::check_root;
use crate::vouch;
use skyphos_core::collectives::allreduce::dense::{
    direct_reduce_scatter, reduce_to_root, ring_reduce_scatter,
};
use skyphos_core::collectives::gather::{
    Schedule, allgather_arrays, alltoall_arrays, alltoall_uneven, gather_equal_arrays, message,
    scatter_arrays,
};
use skyphos_core::frame::{CallKind, CallSig};
use skyphos_core::{Arguments, Call, Endpoint, Traffic};
use skyphos_kernels::split_ranges;
use skyphos_types::{Element, Error, ReduceOp, Result};

/// Which arrays go where. Arrays are seen as one block a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrayMove {
    /// Everyone's array to all; a block is an array.
    Allgather(Schedule),
    /// Everyone's array to one rank.
    Gather {
        /// That rank.
        root: u32,
    },
    /// Block j of everyone's array to rank j.
    Alltoall,
    /// Block j of one rank's array to rank j.
    Scatter {
        /// That rank.
        root: u32,
    },
    /// Rank 0's array to rank 1, in a group of two. Rank 0 waits for rank 1 only if the array is larger than the window.
    Message,
}

impl ArrayMove {
    fn sig<T: Element>(self, size: u32, values: usize, out: usize, shape: &Shape) -> CallSig {
        let (kind, block, extra) = match self {
            ArrayMove::Allgather(schedule) => (CallKind::Allgather, values, schedule as u32),
            ArrayMove::Gather { root } => (CallKind::Gather, values, root),
            ArrayMove::Alltoall => (CallKind::Alltoall, values / size as usize, 0),
            ArrayMove::Scatter { root } => (CallKind::Scatter, out, root),
            ArrayMove::Message => (CallKind::Message, values + out, 0),
        };
        let dtype = T::DTYPE as u8;
        let plain = CallSig::plain(kind);
        CallSig { dtype, flags: CallSig::ARRAYS, width: shape_hash(shape), n: block as u64, extra, ..plain }
    }

    fn arguments(self, shape: Shape) -> Arguments {
        let others = match self {
            ArrayMove::Allgather(schedule) => vec![("algorithm".to_owned(), schedule.name().to_owned())],
            _ => vec![],
        };
        of_arrays(shape, others)
    }

    /// Refuses arrays of which one is not as long as the other makes it.
    fn check(self, ep: &Endpoint, values: usize, out: usize) -> Result<()> {
        let size = ep.size() as usize;
        let (fits, root) = match self {
            ArrayMove::Allgather(_) => (out == values * size, 0),
            ArrayMove::Gather { root } if root == ep.rank() => (out == values * size, root),
            ArrayMove::Gather { root } => (out == 0, root),
            ArrayMove::Alltoall => (values.is_multiple_of(size) && out == values, 0),
            ArrayMove::Scatter { root } if root == ep.rank() => (values == out * size, root),
            ArrayMove::Scatter { root } => (values == 0, root),
            ArrayMove::Message => (size == 2 && [out, values][ep.rank() as usize] == 0, 0),
        };
        check_root(ep, root)?;
        match fits {
            true => Ok(()),
            false => Err(Error::bad_input(format!(
                "arrays of {values} numbers going out and {out} coming in do not fit {self:?} on {size} ranks"
            ))),
        }
    }
}

async fn move_on<T: Element>(ep: &Endpoint, what: ArrayMove, values: &[T], out: &mut [T]) -> Result<()> {
    what.check(ep, values.len(), out.len())?;
    vouch::values(ep, values);
    let (values, out) = (bytemuck::cast_slice(values), bytemuck::cast_slice_mut(out));
    match what {
        ArrayMove::Allgather(schedule) => allgather_arrays(ep, schedule, values, out).await,
        ArrayMove::Gather { root } => gather_equal_arrays(ep, root, values, out).await,
        ArrayMove::Alltoall => alltoall_arrays(ep, values, out).await,
        ArrayMove::Scatter { root } => scatter_arrays(ep, root, values, out).await,
        ArrayMove::Message => message(ep, values, out).await,
    }
}

/// Reduces this rank's share of `values` of all ranks into `out`, or to one rank.
async fn reduce_on<T: Element>(
    ep: &Endpoint,
    root: Option<u32>,
    values: &[T],
    out: &mut [T],
    op: &ReduceOp,
) -> Result<()> {
    op.check(T::DTYPE)?;
    let (me, size) = (ep.rank() as usize, ep.size());
    check_root(ep, root.unwrap_or(0))?;
    let bounds = split_ranges(0, values.len() as u64, size);
    let due = match root {
        None => (bounds[me + 1] - bounds[me]) as usize,
        Some(root) if root as usize == me => values.len(),
        Some(_) => 0,
    };
    if out.len() != due {
        return Err(Error::bad_input(format!("out holds {} numbers where {due} are due", out.len())));
    }
    vouch::values(ep, values);
    let by_ring = choose_dense(size, size_of_val(values), false) == Algorithm::DenseRing;
    match root {
        Some(root) => reduce_to_root(ep, op, root, values, out, by_ring).await,
        None if by_ring => ring_reduce_scatter(ep, op, values, out).await,
        None => direct_reduce_scatter(ep, op, values, out).await,
    }
}

fn reduce_sig<T: Element>(root: Option<u32>, values: usize, op: &ReduceOp, shape: &Shape) -> CallSig {
    let (kind, extra) = match root {
        None => (CallKind::ReduceScatterDense, 0),
        Some(root) => (CallKind::ReduceToRootDense, root),
    };
    let (n, flags, width) = (values as u64, custom_tag(op), shape_hash(shape));
    CallSig { op: op.code(), dtype: T::DTYPE as u8, flags, width, n, extra, ..CallSig::plain(kind) }
}

impl Comm {
    /// Reduces the arrays of all ranks: each rank gets its even share of the result in `out`, or `root` gets all of it
    /// and the others, whose `out` is empty, nothing. Collective; all arrays have the same length.
    pub fn reduce_arrays<T: Element>(
        &self,
        root: Option<u32>,
        values: &[T],
        out: &mut [T],
        op: &ReduceOp,
    ) -> Result<()> {
        let sig = reduce_sig::<T>(root, values.len(), op, &None);
        self.call((sig, of_arrays(None, vec![])), async |ep| reduce_on(ep, root, values, out, op).await)
    }

    /// [`Comm::reduce_arrays`] of arrays of one shape that can go on by itself; gives `out` back.
    pub fn reduce_arrays_call<T: Element, Out: AsMut<[T]> + Send + 'static>(
        &self,
        root: Option<u32>,
        values: impl AsRef<[T]> + Send + 'static,
        mut out: Out,
        op: ReduceOp,
        shape: Shape,
    ) -> Result<Call<Out>> {
        let sig = reduce_sig::<T>(root, values.as_ref().len(), &op, &shape);
        self.prepare((sig, of_arrays(shape, vec![])), Some(&op.clone()), move |ep| async move {
            reduce_on(&ep, root, values.as_ref(), out.as_mut(), &op).await?;
            Ok(out)
        })
    }

    /// Moves blocks of arrays between all ranks. Collective; blocks have the same length on all ranks.
    pub fn move_arrays<T: Element>(&self, what: ArrayMove, values: &[T], out: &mut [T]) -> Result<()> {
        let sig = what.sig::<T>(self.size(), values.len(), out.len(), &None);
        self.call((sig, what.arguments(None)), async |ep| move_on(ep, what, values, out).await)
    }

    /// [`Comm::move_arrays`] of arrays of one shape that can go on by itself; gives `out` back, and what moved.
    pub fn move_arrays_call<T: Element, Out: AsMut<[T]> + Send + 'static>(
        &self,
        what: ArrayMove,
        values: impl AsRef<[T]> + Send + 'static,
        mut out: Out,
        shape: Shape,
    ) -> Result<Call<(Out, Traffic)>> {
        let sig = what.sig::<T>(self.size(), values.as_ref().len(), out.as_mut().len(), &shape);
        self.prepare((sig, what.arguments(shape)), None, move |ep| async move {
            move_on(&ep, what, values.as_ref(), out.as_mut()).await?;
            Ok((out, ep.traffic()))
        })
    }

    /// Sends each rank so many bytes of `from`, and takes so many of each into `out`, in the order of ranks. Collective; what
    /// a rank sends another is what that one expects.
    pub fn alltoall_uneven_call<Out: AsMut<[u8]> + Send + 'static>(
        &self,
        from: impl AsRef<[u8]> + Send + Sync + 'static,
        mut out: Out,
        sends: Vec<usize>,
        receives: Vec<usize>,
    ) -> Result<Call<Out>> {
        // Uneven blocks: another call than that of even ones.
        let sig = CallSig { extra: 1, flags: CallSig::ARRAYS, ..CallSig::plain(CallKind::Alltoall) };
        self.prepare(sig, None, move |ep| async move {
            vouch::values(&ep, from.as_ref());
            alltoall_uneven(&ep, from.as_ref(), out.as_mut(), &sends, &receives).await?;
            Ok(out)
        })
    }
}
