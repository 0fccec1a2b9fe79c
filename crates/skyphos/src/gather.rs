//! Gather of sparse vectors to one rank.

use crate::Comm;
use crate::call_builder::{Body, CallBuilder};
use crate::input_checksum;
use crate::vector_input::{VectorInput, check_root, decode_all, is_wide, plain_sig};
use skyphos_core::collectives::gather::gather;
use skyphos_core::frame::CallKind;
use skyphos_core::stream::encode;
use skyphos_core::{CallRequest, Endpoint};
use skyphos_kernels::stream::SparseVec;
use skyphos_types::{Element, Result};
use std::marker::PhantomData;

/// See [`Comm::gather`].
pub struct Gather<T, X> {
    x: X,
    root: u32,
    element: PhantomData<T>,
}

impl<T: Element, X: VectorInput<T>> Body for Gather<T, X> {
    type Output = Vec<SparseVec<T>>;
    type Op = ();
    type Options = ();

    fn request(&mut self, _: &Comm, (): &(), (): &()) -> CallRequest {
        plain_sig::<T>(CallKind::Gather, self.x.n(), self.x.width(), self.root).into()
    }

    async fn perform(self, ep: &Endpoint, (): &(), (): &()) -> Result<Self::Output> {
        let (n, width, view) = (self.x.n(), self.x.width(), self.x.view());
        view.check(n, width)?;
        check_root(ep, self.root)?;
        input_checksum::views(ep, width, &[view]);
        let items = gather(ep, self.root, encode(ep, view, width, 0, 0, n)).await?;
        decode_all(ep, (n, width, is_wide(n, &view)), &items)
    }
}

impl Comm {
    /// The vectors of all ranks on `root`, in rank order; none elsewhere. Collective.
    ///
    /// ```
    /// use skyphos::{Comm, IndexList, SparseVec};
    ///
    /// let ranks = Comm::local(2, &Default::default()).unwrap();
    /// let counts = ranks.map_ranks(|comm| {
    ///     let x = SparseVec::new(10, 1, IndexList::Narrow(vec![comm.rank()]), vec![1.0]).unwrap();
    ///     comm.gather(&x, 0).run().unwrap().len()
    /// });
    /// assert_eq!(counts, [2, 0]);
    /// ```
    pub fn gather<T: Element, X: VectorInput<T>>(&self, x: X, root: u32) -> CallBuilder<'_, Gather<T, X>> {
        CallBuilder::new(self, Gather { x, root, element: PhantomData })
    }
}
