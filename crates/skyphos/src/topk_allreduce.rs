//! The k largest entries of a sum (Ok-Topk).

use crate::Comm;
use crate::algorithm::AllreduceOptions;
use crate::allreduce::terms;
use crate::arguments::single;
use crate::vectors::Source;
use crate::vouch;
use skyphos_core::collectives::allreduce::butterfly::Parts;
use skyphos_core::collectives::topk_allreduce::topk_allreduce;
use skyphos_core::frame::{CallKind, CallSig};
use skyphos_core::{Call, Endpoint};
use skyphos_kernels::stream::{IndexList, SparseVec, View, set_bits_between};
use skyphos_kernels::{Magnitude, Select, topk};
use skyphos_types::{Error, ReduceOp, Result};

/// What [`Comm::topk_allreduce`] returns.
#[derive(Clone, Debug, PartialEq)]
pub struct TopkSum<T> {
    /// The largest entries of the sum; the same on all ranks.
    pub sum: SparseVec<T>,
    /// Indices that this rank put in: its own largest. Those of them that `sum` has are what it contributed.
    pub offered: IndexList,
    /// Words (an index or a value each) of entries that this rank sent and received: at most 6k each.
    pub sent_words: u64,
    /// See `sent_words`.
    pub received_words: u64,
}

impl Comm {
    /// The `k` largest entries, by magnitude, of the sum of all ranks' own `k` largest, on every rank: not those of the
    /// sum of all entries, which nobody knows without sending them all. `op` is `Sum` or `Mean`.
    ///
    /// Collective. No rank sends or receives more than 6k words of entries (Ok-Topk: Li & Hoefler 2022).
    pub fn topk_allreduce<T: Magnitude>(
        &self,
        n: u64,
        view: View<'_, T>,
        k: u64,
        op: &ReduceOp,
    ) -> Result<TopkSum<T>> {
        self.call((sig::<T>(n, k, op), single("k", k.to_string())), async |ep| {
            topk_allreduce_on(ep, n, view, k, op).await
        })
    }

    /// [`Comm::topk_allreduce`] that can go on by itself.
    pub fn topk_allreduce_call<T: Magnitude>(
        &self,
        n: u64,
        x: impl Source<T>,
        k: u64,
        op: ReduceOp,
    ) -> Result<Call<TopkSum<T>>> {
        let sig = sig::<T>(n, k, &op);
        self.prepare((sig, single("k", k.to_string())), None, move |ep| async move {
            topk_allreduce_on(&ep, n, x.view(), k, &op).await
        })
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
    vouch::views(ep, 1, &[view]);
    let options = AllreduceOptions::default();
    let terms = Parts::Sparse.terms(terms::<T>(n, 1, &view, op, &options));
    let (indices, values) = largest(view, k, terms.shape.wide)?;
    let own = View::Sparse { indices: indices.view(), values: &values };
    let got = topk_allreduce(ep, own, terms, k).await?;
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
    let (mut places, mut picked) = (Vec::new(), Vec::new());
    let of = |indices: &mut dyn Iterator<Item = u64>| match wide {
        true => IndexList::Wide(indices.collect()),
        false => IndexList::Narrow(indices.map(|i| i as u32).collect()),
    };
    match view {
        View::Sparse { indices, values } => {
            topk(values, Select::Whole { k }, &mut places, &mut picked)?;
            let list = indices.to_vec();
            Ok((of(&mut places.iter().map(|p| list[*p as usize])), picked))
        }
        View::Dense { values, present: None } => {
            topk(values, Select::Whole { k }, &mut places, &mut picked)?;
            Ok((of(&mut places.iter().map(|p| u64::from(*p))), picked))
        }
        View::Dense { values, present: Some(bits) } => {
            let held = set_bits_between(bits, 0, values.len());
            let rows: Vec<T> = held.iter().map(|k| values[*k]).collect();
            topk(&rows, Select::Whole { k }, &mut places, &mut picked)?;
            Ok((of(&mut places.iter().map(|p| held[*p as usize] as u64)), picked))
        }
    }
}
