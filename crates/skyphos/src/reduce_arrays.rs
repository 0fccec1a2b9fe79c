//! Reduce-scatter and reduce of arrays, which are not encoded.

use crate::Comm;
use crate::arguments::array_arguments;
use crate::call_builder::{Body, CallBuilder};
use crate::input_checksum;
use crate::move_arrays::ArrayOptions;
use crate::signature::custom_tag;
use crate::signature::{Shape, shape_hash};
use crate::vector_input::check_root;
use skyphos_core::collectives::allreduce::dense::{
    direct_reduce_scatter, reduce_to_root, ring_reduce_scatter,
};
use skyphos_core::frame::{CallKind, CallSig};
use skyphos_core::{CallRequest, Endpoint};
use skyphos_kernels::split_ranges;
use skyphos_tune::{Algorithm, choose_dense};
use skyphos_types::{Element, Error, ReduceOp, Result};
use std::marker::PhantomData;

/// Reduces the arrays of all ranks. `out` gets this rank's share; with a root, the root's `out` gets the whole array.
async fn reduce_on<T: Element>(
    ep: &Endpoint,
    root: Option<u32>,
    values: &[T],
    out: &mut [T],
    op: &ReduceOp,
) -> Result<()> {
    op.check(T::DTYPE)?;
    let (me, size) = (ep.rank().index(), ep.size());
    check_root(ep, root.unwrap_or(0))?;
    let bounds = split_ranges(0, values.len() as u64, size);
    let expected = match root {
        None => (bounds[me + 1] - bounds[me]) as usize,
        Some(root) if root as usize == me => values.len(),
        Some(_) => 0,
    };
    if out.len() != expected {
        return Err(Error::bad_input(format!("out holds {} numbers, not {expected}", out.len())));
    }
    input_checksum::values(ep, values);
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

/// See [`Comm::reduce_arrays`].
pub struct ReduceArrays<T, V, Out> {
    root: Option<u32>,
    values: V,
    out: Out,
    element: PhantomData<T>,
}

impl<T: Element, V: AsRef<[T]> + Send, Out: AsMut<[T]> + Send> Body for ReduceArrays<T, V, Out> {
    type Output = Out;
    type Op = ReduceOp;
    type Options = ArrayOptions;

    fn request(&mut self, _: &Comm, op: &ReduceOp, options: &ArrayOptions) -> CallRequest {
        let sig = reduce_sig::<T>(self.root, self.values.as_ref().len(), op, &options.shape);
        (sig, array_arguments(options.shape.clone(), vec![])).into()
    }

    async fn perform(mut self, ep: &Endpoint, op: &ReduceOp, _: &ArrayOptions) -> Result<Out> {
        reduce_on(ep, self.root, self.values.as_ref(), self.out.as_mut(), op).await?;
        Ok(self.out)
    }
}

impl Comm {
    /// Reduces the arrays of all ranks. Without a root, each rank gets its even share of the result in `out`; with a root, that
    /// rank gets the whole result, and `out` is empty on the others. Returns `out`. All arrays have the same length. Collective.
    ///
    /// ```
    /// use skyphos::Comm;
    ///
    /// let ranks = Comm::local(2, &Default::default()).unwrap();
    /// let shares = ranks.map_ranks(|comm| {
    ///     comm.reduce_arrays(None, [1.0, 2.0, 3.0, 4.0], vec![0.0; 2]).run().unwrap()
    /// });
    /// assert_eq!(shares, [[2.0, 4.0], [6.0, 8.0]]);
    /// ```
    pub fn reduce_arrays<T: Element, V: AsRef<[T]> + Send, Out: AsMut<[T]> + Send>(
        &self,
        root: Option<u32>,
        values: V,
        out: Out,
    ) -> CallBuilder<'_, ReduceArrays<T, V, Out>> {
        CallBuilder::new(self, ReduceArrays { root, values, out, element: PhantomData })
    }
}
