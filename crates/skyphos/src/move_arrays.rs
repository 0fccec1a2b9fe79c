//! Allgather, gather, alltoall, scatter and messages of arrays, which are not encoded.

use crate::Comm;
use crate::arguments::array_arguments;
use crate::call_builder::{Body, CallBuilder};
use crate::input_checksum;
use crate::signature::{Shape, shape_hash};
use crate::vector_input::check_root;
use skyphos_core::collectives::gather::{
    Schedule, allgather_arrays, alltoall_arrays, alltoall_uneven, gather_equal_arrays, message,
    scatter_arrays,
};
use skyphos_core::frame::{CallKind, CallSig};
use skyphos_core::{Arguments, CallRequest, Endpoint, Traffic};
use skyphos_types::{Element, Error, Result};
use std::marker::PhantomData;

/// A movement of arrays, which consist of blocks of equal length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrayMove {
    /// Each rank's array to all ranks: block j of the output is rank j's array.
    Allgather(Schedule),
    /// Each rank's array to one rank: block j of its output is rank j's array.
    Gather {
        /// The rank that receives.
        root: u32,
    },
    /// Block j of each rank's array to rank j.
    Alltoall,
    /// Block j of one rank's array to rank j.
    Scatter {
        /// The rank that sends.
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
        array_arguments(shape, others)
    }

    /// Refuses arrays whose lengths do not match.
    fn check(self, ep: &Endpoint, values: usize, out: usize) -> Result<()> {
        let size = ep.size() as usize;
        let (fits, root) = match self {
            ArrayMove::Allgather(_) => (out == values * size, 0),
            ArrayMove::Gather { root } if root == ep.rank().0 => (out == values * size, root),
            ArrayMove::Gather { root } => (out == 0, root),
            ArrayMove::Alltoall => (values.is_multiple_of(size) && out == values, 0),
            ArrayMove::Scatter { root } if root == ep.rank().0 => (values == out * size, root),
            ArrayMove::Scatter { root } => (values == 0, root),
            ArrayMove::Message => (size == 2 && [out, values][ep.rank().index()] == 0, 0),
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
    input_checksum::values(ep, values);
    let (values, out) = (bytemuck::cast_slice(values), bytemuck::cast_slice_mut(out));
    match what {
        ArrayMove::Allgather(schedule) => allgather_arrays(ep, schedule, values, out).await,
        ArrayMove::Gather { root } => gather_equal_arrays(ep, root, values, out).await,
        ArrayMove::Alltoall => alltoall_arrays(ep, values, out).await,
        ArrayMove::Scatter { root } => scatter_arrays(ep, root, values, out).await,
        ArrayMove::Message => message(ep, values, out).await,
    }
}

/// Settings of collectives of arrays. All ranks pass the same.
#[derive(Clone, Debug, Default)]
pub struct ArrayOptions {
    /// Shape of the array, which all ranks compare.
    pub shape: Shape,
}

/// The result of [`Comm::move_arrays`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovedArrays<Out> {
    /// The array with the received blocks.
    pub out: Out,
    /// Bytes and frames on this rank.
    pub traffic: Traffic,
}

/// See [`Comm::move_arrays`].
pub struct MoveArrays<T, V, Out> {
    what: ArrayMove,
    values: V,
    out: Out,
    element: PhantomData<T>,
}

impl<T: Element, V: AsRef<[T]> + Send, Out: AsMut<[T]> + Send> Body for MoveArrays<T, V, Out> {
    type Output = MovedArrays<Out>;
    type Op = ();
    type Options = ArrayOptions;

    fn request(&mut self, comm: &Comm, (): &(), options: &ArrayOptions) -> CallRequest {
        let (values, out) = (self.values.as_ref().len(), self.out.as_mut().len());
        let sig = self.what.sig::<T>(comm.size(), values, out, &options.shape);
        (sig, self.what.arguments(options.shape.clone())).into()
    }

    async fn perform(mut self, ep: &Endpoint, (): &(), _: &ArrayOptions) -> Result<MovedArrays<Out>> {
        move_on(ep, self.what, self.values.as_ref(), self.out.as_mut()).await?;
        Ok(MovedArrays { out: self.out, traffic: ep.traffic() })
    }
}

/// See [`Comm::alltoall_uneven`].
pub struct AlltoallUneven<V, Out> {
    values: V,
    out: Out,
    sends: Vec<usize>,
    receives: Vec<usize>,
}

impl<V: AsRef<[u8]> + Send, Out: AsMut<[u8]> + Send> Body for AlltoallUneven<V, Out> {
    type Output = Out;
    type Op = ();
    type Options = ();

    fn request(&mut self, _: &Comm, (): &(), (): &()) -> CallRequest {
        // A call with uneven blocks does not match one with even blocks.
        CallSig { extra: 1, flags: CallSig::ARRAYS, ..CallSig::plain(CallKind::Alltoall) }.into()
    }

    async fn perform(mut self, ep: &Endpoint, (): &(), (): &()) -> Result<Out> {
        let (values, out) = (self.values.as_ref(), self.out.as_mut());
        input_checksum::values(ep, values);
        alltoall_uneven(ep, values, out, &self.sends, &self.receives).await?;
        Ok(self.out)
    }
}

impl Comm {
    /// Moves blocks of arrays between all ranks into `out`. Blocks have the same length on all ranks. Collective.
    ///
    /// ```
    /// use skyphos::{ArrayMove, Comm, Schedule};
    ///
    /// let ranks = Comm::local(3, &Default::default()).unwrap();
    /// let all = ranks.map_ranks(|comm| {
    ///     let what = ArrayMove::Allgather(Schedule::Ring);
    ///     comm.move_arrays(what, [comm.rank()], vec![0; 3]).run().unwrap().out
    /// });
    /// assert_eq!(all[2], [0, 1, 2]);
    /// ```
    pub fn move_arrays<T: Element, V: AsRef<[T]> + Send, Out: AsMut<[T]> + Send>(
        &self,
        what: ArrayMove,
        values: V,
        out: Out,
    ) -> CallBuilder<'_, MoveArrays<T, V, Out>> {
        CallBuilder::new(self, MoveArrays { what, values, out, element: PhantomData })
    }

    /// Sends `sends[rank]` bytes of `values` to each rank, and receives `receives[rank]` bytes from each into `out`, both in rank
    /// order. Returns `out`. Each rank must send the number of bytes that the receiver expects. Collective.
    ///
    /// ```
    /// use skyphos::Comm;
    ///
    /// let ranks = Comm::local(2, &Default::default()).unwrap();
    /// let received = ranks.map_ranks(|comm| {
    ///     let rank = comm.rank() as usize; // each rank sends rank 0 one byte, and rank 1 two
    ///     let out = vec![0; 2 * (rank + 1)];
    ///     comm.alltoall_uneven([rank as u8; 3], out, vec![1, 2], vec![rank + 1; 2]).run().unwrap()
    /// });
    /// assert_eq!(received, [vec![0, 1], vec![0, 0, 1, 1]]);
    /// ```
    pub fn alltoall_uneven<V: AsRef<[u8]> + Send, Out: AsMut<[u8]> + Send>(
        &self,
        values: V,
        out: Out,
        sends: Vec<usize>,
        receives: Vec<usize>,
    ) -> CallBuilder<'_, AlltoallUneven<V, Out>> {
        CallBuilder::new(self, AlltoallUneven { values, out, sends, receives })
    }
}
