//! Reduce, gather, alltoall and scatter of sparse vectors: each collective once, as an async function, and two ways to
//! call it.

use crate::Comm;
use crate::algorithm::AllreduceOptions;
use crate::allreduce::terms;
use crate::quantize::refuse;
use crate::signature::custom_tag;
use crate::vouch;
use skyphos_core::collectives::bounds;
use skyphos_core::collectives::gather::{self, Item};
use skyphos_core::collectives::reduce_to_root::reduce_to_root;
use skyphos_core::frame::{CallKind, CallSig};
use skyphos_core::stream::{Assembler, encode};
use skyphos_core::{Call, Endpoint};
use skyphos_kernels::Indices;
use skyphos_kernels::stream::{Form, Shape, SparseVec, View};
use skyphos_types::{Element, Error, ReduceOp, Result};

/// A call without an operation.
pub(crate) fn plain<T: Element>(kind: CallKind, n: u64, width: usize, extra: u32) -> CallSig {
    let width = u32::try_from(width).unwrap_or(u32::MAX);
    CallSig { dtype: T::DTYPE as u8, width, n, extra, ..CallSig::plain(kind) }
}

/// Refuses a root that is no rank.
pub(crate) fn check_root(ep: &Endpoint, root: u32) -> Result<()> {
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

/// Where a call that goes on by itself has its vector.
pub trait Source<T>: Send + 'static {
    /// The vector. The same at any time.
    fn view(&self) -> View<'_, T>;
}

impl<T: Element> Source<T> for SparseVec<T> {
    fn view(&self) -> View<'_, T> {
        SparseVec::view(self)
    }
}

impl<T: Element> Source<T> for std::sync::Arc<SparseVec<T>> {
    fn view(&self) -> View<'_, T> {
        SparseVec::view(self)
    }
}

async fn reduce_to_root_on<T: Element>(
    ep: &Endpoint,
    (n, width): (u64, usize),
    view: View<'_, T>,
    op: &ReduceOp,
    root: u32,
    options: &AllreduceOptions,
) -> Result<Option<SparseVec<T>>> {
    refuse(&options.quantize, "reduce")?;
    op.check(T::DTYPE)?;
    view.check(n, width)?;
    check_root(ep, root)?;
    vouch::views(ep, width, &[view]);
    let terms = terms::<T>(n, width, &view, op, options);
    let bounds = bounds(ep, options.split, view, width, n, ep.size()).await?;
    let form: Option<Form<T>> = reduce_to_root(ep, view, terms, bounds, root).await?;
    Ok(form.map(|form| SparseVec { n, width, form }))
}

pub(crate) fn decode_all<T: Element>(
    ep: &Endpoint,
    n: u64,
    width: usize,
    wide: bool,
    items: &[Item],
) -> Result<Vec<SparseVec<T>>> {
    (0..).zip(items).map(|(rank, item)| decode(ep, rank, n, width, wide, item)).collect()
}

async fn gather_on<T: Element>(
    ep: &Endpoint,
    (n, width): (u64, usize),
    view: View<'_, T>,
    root: u32,
) -> Result<Vec<SparseVec<T>>> {
    view.check(n, width)?;
    check_root(ep, root)?;
    vouch::views(ep, width, &[view]);
    let items = gather::gather(ep, root, encode(ep, view, width, 0, 0, n)).await?;
    decode_all(ep, n, width, is_wide(n, &view), &items)
}

/// Encodes one vector a rank; whether any has indices of 8 bytes.
fn encode_each<T: Element>(
    ep: &Endpoint,
    n: u64,
    width: usize,
    views: &[View<'_, T>],
) -> Result<(Vec<Item>, bool)> {
    views.iter().try_for_each(|view| view.check(n, width))?;
    vouch::views(ep, width, views);
    let own = views.iter().map(|view| encode(ep, *view, width, 0, 0, n)).collect();
    Ok((own, n > 1 << 32 || views.iter().any(|view| is_wide(n, view))))
}

async fn alltoall_on<T: Element>(
    ep: &Endpoint,
    (n, width): (u64, usize),
    views: &[View<'_, T>],
) -> Result<Vec<SparseVec<T>>> {
    check_count(ep, views.len())?;
    let (own, wide) = encode_each(ep, n, width, views)?;
    let items = gather::alltoall(ep, &own).await?;
    decode_all(ep, n, width, wide, &items)
}

async fn scatter_on<T: Element>(
    ep: &Endpoint,
    (n, width): (u64, usize),
    views: &[View<'_, T>],
    root: u32,
) -> Result<SparseVec<T>> {
    check_root(ep, root)?;
    if ep.rank() == root {
        check_count(ep, views.len())?;
    }
    let (own, wide) = encode_each(ep, n, width, views)?;
    let item = gather::scatter(ep, root, &own).await?;
    decode(ep, root, n, width, wide, &item)
}

fn views<T: Element>(sources: &[impl Source<T>]) -> Vec<View<'_, T>> {
    sources.iter().map(Source::view).collect()
}

impl Comm {
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
        let sig = to_root::<T>(n, width, op, root);
        self.call(sig, async |ep| reduce_to_root_on(ep, (n, width), view, op, root, options).await)
    }

    /// [`Comm::reduce_to_root`] that can go on by itself.
    pub fn reduce_to_root_call<T: Element>(
        &self,
        n: u64,
        width: usize,
        x: impl Source<T>,
        op: ReduceOp,
        root: u32,
        options: AllreduceOptions,
    ) -> Result<Call<Option<SparseVec<T>>>> {
        let sig = to_root::<T>(n, width, &op, root);
        self.prepare(sig, Some(&op.clone()), move |ep| async move {
            reduce_to_root_on(&ep, (n, width), x.view(), &op, root, &options).await
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
        let sig = plain::<T>(CallKind::Gather, n, width, root);
        self.call(sig, async |ep| gather_on(ep, (n, width), view, root).await)
    }

    /// [`Comm::gather`] that can go on by itself.
    pub fn gather_call<T: Element>(
        &self,
        n: u64,
        width: usize,
        x: impl Source<T>,
        root: u32,
    ) -> Result<Call<Vec<SparseVec<T>>>> {
        let sig = plain::<T>(CallKind::Gather, n, width, root);
        self.prepare(sig, None, move |ep| async move { gather_on(&ep, (n, width), x.view(), root).await })
    }

    /// Vector j of each rank on rank j, in rank order. Collective.
    pub fn alltoall<T: Element>(
        &self,
        n: u64,
        width: usize,
        views: &[View<'_, T>],
    ) -> Result<Vec<SparseVec<T>>> {
        let sig = plain::<T>(CallKind::Alltoall, n, width, 0);
        self.call(sig, async |ep| alltoall_on(ep, (n, width), views).await)
    }

    /// [`Comm::alltoall`] that can go on by itself.
    pub fn alltoall_call<T: Element>(
        &self,
        n: u64,
        width: usize,
        xs: Vec<impl Source<T> + Sync>,
    ) -> Result<Call<Vec<SparseVec<T>>>> {
        let sig = plain::<T>(CallKind::Alltoall, n, width, 0);
        self.prepare(sig, None, move |ep| async move { alltoall_on(&ep, (n, width), &views(&xs)).await })
    }

    /// Vector j of `root` on rank j; the other ranks pass none. Collective.
    pub fn scatter<T: Element>(
        &self,
        n: u64,
        width: usize,
        views: &[View<'_, T>],
        root: u32,
    ) -> Result<SparseVec<T>> {
        let sig = plain::<T>(CallKind::Scatter, n, width, root);
        self.call(sig, async |ep| scatter_on(ep, (n, width), views, root).await)
    }

    /// [`Comm::scatter`] that can go on by itself.
    pub fn scatter_call<T: Element>(
        &self,
        n: u64,
        width: usize,
        xs: Vec<impl Source<T> + Sync>,
        root: u32,
    ) -> Result<Call<SparseVec<T>>> {
        let sig = plain::<T>(CallKind::Scatter, n, width, root);
        self.prepare(sig, None, move |ep| async move { scatter_on(&ep, (n, width), &views(&xs), root).await })
    }
}

/// The call of a reduction to one rank.
fn to_root<T: Element>(n: u64, width: usize, op: &ReduceOp, root: u32) -> CallSig {
    let sig = plain::<T>(CallKind::ReduceToRoot, n, width, root);
    CallSig { op: op.code(), flags: custom_tag(op), ..sig }
}

/// Refuses any other number of vectors than one a rank.
fn check_count(ep: &Endpoint, count: usize) -> Result<()> {
    match count == ep.size() as usize {
        true => Ok(()),
        false => Err(Error::bad_input(format!("{count} vectors for {} ranks: pass one a rank", ep.size()))),
    }
}
