//! Reduce-scatter, reduce, allgather, gather, alltoall and scatter of sparse vectors.

use crate::Comm;
use crate::allreduce::{AllreduceOptions, terms};
use crate::configure::custom_tag;
use crate::quantize::refuse;
use skyphos_core::Endpoint;
use skyphos_core::collectives::allreduce::butterfly::{Parts, reduce_scatter};
use skyphos_core::collectives::gather::{self, Item, Schedule};
use skyphos_core::collectives::reduce_to_root::reduce_to_root;
use skyphos_core::frame::{CallKind, CallSig};
use skyphos_core::stream::{Assembler, bounds, encode};
use skyphos_kernels::Indices;
use skyphos_kernels::stream::{Form, Shape, SparseVec, View};
use skyphos_types::{Element, Error, ReduceOp, Result};
use std::ops::Range;

/// A call without an operation.
fn plain<T: Element>(kind: CallKind, n: u64, width: usize, extra: u32) -> CallSig {
    let width = u32::try_from(width).unwrap_or(u32::MAX);
    CallSig { kind, op: 0, dtype: T::DTYPE as u8, flags: 0, width, n, extra }
}

/// Refuses a root that is no rank.
fn check_root(ep: &Endpoint, root: u32) -> Result<()> {
    match root < ep.size() {
        true => Ok(()),
        false => Err(Error::bad_input(format!("root={root} is no rank of a group of {}", ep.size()))),
    }
}

/// Whether a view's indices take 8 bytes.
pub(crate) fn is_wide<T>(n: u64, view: &View<'_, T>) -> bool {
    n > 1 << 32 || matches!(view, View::Sparse { indices: Indices::I64(_) | Indices::U64(_), .. })
}

/// A vector from its segments. It is dense if it has every row.
fn decode<T: Element>(
    ep: &Endpoint,
    from: u32,
    n: u64,
    width: usize,
    wide: bool,
    item: &Item,
) -> Result<SparseVec<T>> {
    let dense_above = 1.0 - 0.5 / n.max(1) as f64;
    let shape = Shape { width, wide, dense_above, with_present: false };
    let mut assembler = Assembler::new(&[0, n], shape, T::ZERO);
    assembler.take_all(ep, from, 0, item)?;
    Ok(SparseVec { n, width, form: assembler.finish() })
}

impl Comm {
    /// The reduction of all ranks' vectors, of which each rank gets the entries of its own range; ranges are even.
    ///
    /// Collective. Returns the entries, sparse, and the range.
    pub fn reduce_scatter<T: Element>(
        &self,
        n: u64,
        width: usize,
        view: View<'_, T>,
        op: &ReduceOp,
        options: &AllreduceOptions,
    ) -> Result<(SparseVec<T>, Range<u64>)> {
        let sig = options.sig::<T>(CallKind::ReduceScatter, op, n, width);
        self.call(sig, async |ep| {
            refuse(&options.quantize, "reduce_scatter")?;
            op.check(T::DTYPE)?;
            view.check(n, width)?;
            let terms = terms::<T>(n, width, &view, op, options);
            let down = Parts::Sparse.terms(terms);
            let bounds = bounds(ep, options.split, view, width, n, ep.size()).await?;
            let reduced = reduce_scatter(ep, view, down, &[ep.size()], bounds).await?;
            let range = reduced.part.lo..reduced.part.hi;
            Ok((SparseVec { n, width, form: reduced.part.form }, range))
        })
    }

    /// The reduction of all ranks' vectors on `root`; `None` elsewhere. Collective.
    pub fn reduce_to_root<T: Element>(
        &self,
        n: u64,
        width: usize,
        view: View<'_, T>,
        op: &ReduceOp,
        root: u32,
        options: &AllreduceOptions,
    ) -> Result<Option<SparseVec<T>>> {
        let mut sig = plain::<T>(CallKind::ReduceToRoot, n, width, root);
        (sig.op, sig.flags) = (op.code(), custom_tag(op));
        self.call(sig, async |ep| {
            refuse(&options.quantize, "reduce")?;
            op.check(T::DTYPE)?;
            view.check(n, width)?;
            check_root(ep, root)?;
            let terms = terms::<T>(n, width, &view, op, options);
            let bounds = bounds(ep, options.split, view, width, n, ep.size()).await?;
            let form: Option<Form<T>> = reduce_to_root(ep, view, terms, bounds, root).await?;
            Ok(form.map(|form| SparseVec { n, width, form }))
        })
    }

    /// The vectors of all ranks, in rank order. Collective.
    pub fn allgather<T: Element>(
        &self,
        n: u64,
        width: usize,
        view: View<'_, T>,
        schedule: Schedule,
    ) -> Result<Vec<SparseVec<T>>> {
        self.call(plain::<T>(CallKind::Allgather, n, width, schedule as u32), async |ep| {
            view.check(n, width)?;
            let (own, wide) = (encode(ep, view, width, 0, 0, n), is_wide(n, &view));
            let items = gather::allgather(ep, schedule, own).await?;
            (0..).zip(&items).map(|(rank, item)| decode(ep, rank, n, width, wide, item)).collect()
        })
    }

    /// The vectors of all ranks on `root`, in rank order; none elsewhere. Collective.
    pub fn gather<T: Element>(
        &self,
        n: u64,
        width: usize,
        view: View<'_, T>,
        root: u32,
    ) -> Result<Vec<SparseVec<T>>> {
        self.call(plain::<T>(CallKind::Gather, n, width, root), async |ep| {
            view.check(n, width)?;
            check_root(ep, root)?;
            let (own, wide) = (encode(ep, view, width, 0, 0, n), is_wide(n, &view));
            let items = gather::gather(ep, root, own).await?;
            (0..).zip(&items).map(|(rank, item)| decode(ep, rank, n, width, wide, item)).collect()
        })
    }

    /// Vector j of each rank on rank j, in rank order. Collective.
    pub fn alltoall<T: Element>(
        &self,
        n: u64,
        width: usize,
        views: &[View<'_, T>],
    ) -> Result<Vec<SparseVec<T>>> {
        self.call(plain::<T>(CallKind::Alltoall, n, width, 0), async |ep| {
            check_count(ep, views.len())?;
            views.iter().try_for_each(|view| view.check(n, width))?;
            let own: Vec<Item> = views.iter().map(|view| encode(ep, *view, width, 0, 0, n)).collect();
            let wide = views.iter().any(|view| is_wide(n, view));
            let items = gather::alltoall(ep, &own).await?;
            (0..).zip(&items).map(|(rank, item)| decode(ep, rank, n, width, wide, item)).collect()
        })
    }

    /// Vector j of `root` on rank j; the other ranks pass none. Collective.
    pub fn scatter<T: Element>(
        &self,
        n: u64,
        width: usize,
        views: &[View<'_, T>],
        root: u32,
    ) -> Result<SparseVec<T>> {
        self.call(plain::<T>(CallKind::Scatter, n, width, root), async |ep| {
            check_root(ep, root)?;
            if ep.rank() == root {
                check_count(ep, views.len())?;
            }
            views.iter().try_for_each(|view| view.check(n, width))?;
            let own: Vec<Item> = views.iter().map(|view| encode(ep, *view, width, 0, 0, n)).collect();
            let wide = views.iter().any(|view| is_wide(n, view)) || n > 1 << 32;
            let item = gather::scatter(ep, root, &own).await?;
            decode(ep, root, n, width, wide, &item)
        })
    }
}

/// Refuses any other number of vectors than one a rank.
fn check_count(ep: &Endpoint, count: usize) -> Result<()> {
    match count == ep.size() as usize {
        true => Ok(()),
        false => Err(Error::bad_input(format!("{count} vectors for {} ranks: pass one a rank", ep.size()))),
    }
}
