//! Alltoall and scatter of sparse vectors: one vector for each rank.

use crate::Comm;
use crate::call_builder::{Body, CallBuilder};
use crate::input_checksum;
use crate::vector_input::{VectorInput, check_count, check_root, decode, decode_all, is_wide, plain_sig};
use skyphos_core::collectives::gather::{Item, alltoall, scatter};
use skyphos_core::frame::CallKind;
use skyphos_core::stream::encode;
use skyphos_core::{CallRequest, Endpoint};
use skyphos_kernels::stream::{SparseVec, View};
use skyphos_types::{Element, GroupRank, Result};
use std::marker::PhantomData;

/// One vector for each rank, all of `n` rows of `width` numbers.
struct Vectors<T, X> {
    n: u64,
    width: usize,
    xs: Vec<X>,
    element: PhantomData<T>,
}

impl<T: Element, X: VectorInput<T>> Vectors<T, X> {
    /// Each vector in segments, and whether any of them has indices of 8 bytes.
    fn encode(&self, ep: &Endpoint) -> Result<(Vec<Item>, bool)> {
        let &Vectors { n, width, .. } = self;
        let views: Vec<View<'_, T>> = self.xs.iter().map(VectorInput::view).collect();
        views.iter().try_for_each(|view| view.check(n, width))?;
        input_checksum::views(ep, width, &views);
        let items = views.iter().map(|view| encode(ep, *view, width, 0, 0, n)).collect();
        Ok((items, n > 1 << 32 || views.iter().any(|view| is_wide(n, view))))
    }
}

/// See [`Comm::alltoall`].
pub struct Alltoall<T, X>(Vectors<T, X>);

impl<T: Element, X: VectorInput<T>> Body for Alltoall<T, X> {
    type Output = Vec<SparseVec<T>>;
    type Op = ();
    type Options = ();

    fn request(&mut self, _: &Comm, (): &(), (): &()) -> CallRequest {
        plain_sig::<T>(CallKind::Alltoall, self.0.n, self.0.width, 0).into()
    }

    async fn perform(self, ep: &Endpoint, (): &(), (): &()) -> Result<Self::Output> {
        let Vectors { n, width, .. } = self.0;
        check_count(ep, self.0.xs.len())?;
        let (own, wide) = self.0.encode(ep)?;
        let items = alltoall(ep, &own).await?;
        decode_all(ep, (n, width, wide), &items)
    }
}

/// See [`Comm::scatter`].
pub struct Scatter<T, X> {
    vectors: Vectors<T, X>,
    root: u32,
}

impl<T: Element, X: VectorInput<T>> Body for Scatter<T, X> {
    type Output = SparseVec<T>;
    type Op = ();
    type Options = ();

    fn request(&mut self, _: &Comm, (): &(), (): &()) -> CallRequest {
        plain_sig::<T>(CallKind::Scatter, self.vectors.n, self.vectors.width, self.root).into()
    }

    async fn perform(self, ep: &Endpoint, (): &(), (): &()) -> Result<Self::Output> {
        let Scatter { vectors, root } = self;
        check_root(ep, root)?;
        if ep.rank() == GroupRank(root) {
            check_count(ep, vectors.xs.len())?;
        }
        let (own, wide) = vectors.encode(ep)?;
        let item = scatter(ep, root, &own).await?;
        decode(ep, root, (vectors.n, vectors.width, wide), &item)
    }
}

impl Comm {
    /// Rank j gets vector j of each rank, in rank order. Each rank passes one vector of `n` rows of `width` numbers for each
    /// rank. Collective.
    ///
    /// ```
    /// use skyphos::{Comm, IndexList, SparseVec};
    ///
    /// let ranks = Comm::local(2, &Default::default()).unwrap();
    /// let received = ranks.map_ranks(|comm| {
    ///     let to = |j: u32| SparseVec::new(10, 1, IndexList::Narrow(vec![j]), vec![comm.rank()]).unwrap();
    ///     let all = comm.alltoall(10, 1, vec![to(0), to(1)]).run().unwrap();
    ///     all.iter().map(|x| x.entries()).collect::<Vec<_>>()
    /// });
    /// assert_eq!(received[1], [(vec![1], vec![0]), (vec![1], vec![1])]);
    /// ```
    pub fn alltoall<T: Element, X: VectorInput<T>>(
        &self,
        n: u64,
        width: usize,
        xs: Vec<X>,
    ) -> CallBuilder<'_, Alltoall<T, X>> {
        CallBuilder::new(self, Alltoall(Vectors { n, width, xs, element: PhantomData }))
    }

    /// Rank j gets vector j of `root`. The root passes one vector of `n` rows of `width` numbers for each rank, the others
    /// pass none. Collective.
    ///
    /// ```
    /// use skyphos::{Comm, IndexList, SparseVec};
    ///
    /// let ranks = Comm::local(2, &Default::default()).unwrap();
    /// let received = ranks.map_ranks(|comm| {
    ///     let to = |j: u32| SparseVec::new(10, 1, IndexList::Narrow(vec![j]), vec![7]).unwrap();
    ///     let own = if comm.rank() == 0 { vec![to(0), to(1)] } else { vec![] };
    ///     comm.scatter(10, 1, own, 0).run().unwrap().entries()
    /// });
    /// assert_eq!(received, [(vec![0], vec![7]), (vec![1], vec![7])]);
    /// ```
    pub fn scatter<T: Element, X: VectorInput<T>>(
        &self,
        n: u64,
        width: usize,
        xs: Vec<X>,
        root: u32,
    ) -> CallBuilder<'_, Scatter<T, X>> {
        CallBuilder::new(self, Scatter { vectors: Vectors { n, width, xs, element: PhantomData }, root })
    }
}
