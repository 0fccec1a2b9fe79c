//! The k largest entries of a sum (Ok-Topk).

use crate::Comm;
use crate::allreduce::params;
use crate::allreduce_options::AllreduceOptions;
use crate::arguments::single;
use crate::call_builder::{Body, CallBuilder};
use crate::input_checksum;
use crate::vector_input::VectorInput;
use skyphos_core::collectives::allreduce::butterfly::RangeForm;
use skyphos_core::collectives::topk_allreduce::topk_allreduce;
use skyphos_core::frame::{CallKind, CallSig};
use skyphos_core::{CallRequest, Endpoint};
use skyphos_kernels::stream::{IndexList, SparseVec, View, set_bits_between};
use skyphos_kernels::{Magnitude, Select, topk};
use skyphos_types::{Error, ReduceOp, Result};
use std::marker::PhantomData;

/// The result of [`Comm::topk_allreduce`].
#[derive(Clone, Debug, PartialEq)]
pub struct TopkSum<T> {
    /// The largest entries of the sum; the same on all ranks.
    pub sum: SparseVec<T>,
    /// Indices of this rank's own k largest entries. It has contributed those that are in `sum`.
    pub offered: IndexList,
    /// Words (an index or a value each) of entries that this rank sent: at most 6k.
    pub sent_words: u64,
    /// Words of entries that this rank received: at most 6k.
    pub received_words: u64,
}

/// See [`Comm::topk_allreduce`].
pub struct TopkAllreduce<T, X> {
    x: X,
    k: u64,
    element: PhantomData<T>,
}

impl<T: Magnitude, X: VectorInput<T>> Body for TopkAllreduce<T, X> {
    type Output = TopkSum<T>;
    type Op = ReduceOp;
    type Options = ();

    fn request(&mut self, _: &Comm, op: &ReduceOp, (): &()) -> CallRequest {
        (sig::<T>(self.x.n(), self.k, op), single("k", self.k.to_string())).into()
    }

    async fn perform(self, ep: &Endpoint, op: &ReduceOp, (): &()) -> Result<TopkSum<T>> {
        topk_allreduce_on(ep, self.x.n(), self.x.view(), self.k, op).await
    }
}

impl Comm {
    /// The `k` entries of largest magnitude in the sum of all ranks' own `k` largest entries, on every rank. (The largest entries of
    /// the sum of *all* entries would require sending all entries.) Rows are single numbers; the operation is `Sum` or `Mean`.
    ///
    /// Collective. No rank sends or receives more than 6k words of entries (Ok-Topk: Li & Hoefler 2022).
    ///
    /// ```
    /// use skyphos::{Comm, IndexList, SparseVec};
    ///
    /// let ranks = Comm::local(2, &Default::default()).unwrap();
    /// let sums = ranks.map_ranks(|comm| {
    ///     let x = SparseVec::new(10, 1, IndexList::Narrow(vec![comm.rank(), 5]), vec![1.0, 2.0]).unwrap();
    ///     comm.topk_allreduce(&x, 1).run().unwrap().sum.entries()
    /// });
    /// assert_eq!(sums, [(vec![5], vec![4.0]), (vec![5], vec![4.0])]);
    /// ```
    pub fn topk_allreduce<T: Magnitude, X: VectorInput<T>>(
        &self,
        x: X,
        k: u64,
    ) -> CallBuilder<'_, TopkAllreduce<T, X>> {
        CallBuilder::new(self, TopkAllreduce { x, k, element: PhantomData })
    }
}

fn sig<T: Magnitude>(n: u64, k: u64, op: &ReduceOp) -> CallSig {
    let extra = (k ^ k >> 32) as u32;
    CallSig {
        op: op.code(),
        dtype: T::DTYPE as u8,
        width: 1,
        n,
        extra,
        ..CallSig::plain(CallKind::TopkAllreduce)
    }
}

async fn topk_allreduce_on<T: Magnitude>(
    ep: &Endpoint,
    n: u64,
    view: View<'_, T>,
    k: u64,
    op: &ReduceOp,
) -> Result<TopkSum<T>> {
    if !matches!(op, ReduceOp::Sum | ReduceOp::Mean) {
        return Err(Error::bad_input(format!(
            "topk_allreduce takes op \"sum\" or \"mean\", not {:?}",
            op.name()
        )));
    }
    view.check(n, 1)?;
    input_checksum::views(ep, 1, &[view]);
    let options = AllreduceOptions::default();
    let params = RangeForm::Sparse.params(params::<T>(n, 1, &view, op, &options));
    let (indices, values) = largest(view, k, params.shape.wide)?;
    let own = View::Sparse { indices: indices.view(), values: &values };
    let got = topk_allreduce(ep, own, params, k).await?;
    Ok(TopkSum {
        sum: SparseVec { n, width: 1, form: got.form },
        offered: indices,
        sent_words: got.sent_words,
        received_words: got.received_words,
    })
}

/// A vector's own largest entries.
fn largest<T: Magnitude>(view: View<'_, T>, k: u64, wide: bool) -> Result<(IndexList, Vec<T>)> {
    let k = usize::try_from(k).unwrap_or(usize::MAX);
    let (mut positions, mut picked) = (Vec::new(), Vec::new());
    let index_list = |indices: &mut dyn Iterator<Item = u64>| match wide {
        true => IndexList::Wide(indices.collect()),
        false => IndexList::Narrow(indices.map(|i| i as u32).collect()),
    };
    match view {
        View::Sparse { indices, values } => {
            topk(values, Select::Whole { k }, &mut positions, &mut picked)?;
            let list = indices.to_vec();
            Ok((index_list(&mut positions.iter().map(|p| list[*p as usize])), picked))
        }
        View::Dense { values, present: None } => {
            topk(values, Select::Whole { k }, &mut positions, &mut picked)?;
            Ok((index_list(&mut positions.iter().map(|p| u64::from(*p))), picked))
        }
        View::Dense { values, present: Some(bits) } => {
            let present = set_bits_between(bits, 0, values.len());
            let rows: Vec<T> = present.iter().map(|k| values[*k]).collect();
            topk(&rows, Select::Whole { k }, &mut positions, &mut picked)?;
            Ok((index_list(&mut positions.iter().map(|p| present[*p as usize] as u64)), picked))
        }
    }
}
