//! Reduction of sparse vectors to one rank.

use crate::Comm;
use crate::allreduce::params;
use crate::allreduce_options::AllreduceOptions;
use crate::call_builder::{Body, CallBuilder};
use crate::input_checksum;
use crate::quantize::refuse;
use crate::signature::custom_tag;
use crate::vector_input::{VectorInput, check_root, plain_sig};
use skyphos_core::collectives::bounds;
use skyphos_core::collectives::reduce_to_root::reduce_to_root;
use skyphos_core::frame::{CallKind, CallSig};
use skyphos_core::{CallRequest, Endpoint};
use skyphos_kernels::stream::SparseVec;
use skyphos_types::{Element, ReduceOp, Result};
use std::marker::PhantomData;

/// See [`Comm::reduce_to_root`].
pub struct ReduceToRoot<T, X> {
    x: X,
    root: u32,
    element: PhantomData<T>,
}

impl<T: Element, X: VectorInput<T>> Body for ReduceToRoot<T, X> {
    type Output = Option<SparseVec<T>>;
    type Op = ReduceOp;
    type Options = AllreduceOptions;

    fn request(&mut self, _: &Comm, op: &ReduceOp, _: &AllreduceOptions) -> CallRequest {
        let sig = plain_sig::<T>(CallKind::ReduceToRoot, self.x.n(), self.x.width(), self.root);
        CallSig { op: op.code(), flags: custom_tag(op), ..sig }.into()
    }

    async fn perform(self, ep: &Endpoint, op: &ReduceOp, options: &AllreduceOptions) -> Result<Self::Output> {
        let (n, width, view) = (self.x.n(), self.x.width(), self.x.view());
        refuse(&options.quantize, "reduce")?;
        op.check(T::DTYPE)?;
        view.check(n, width)?;
        check_root(ep, self.root)?;
        input_checksum::views(ep, width, &[view]);
        let params = params::<T>(n, width, &view, op, options);
        let bounds = bounds(ep, options.split, view, width, n, ep.size()).await?;
        let form = reduce_to_root(ep, view, params, bounds, self.root).await?;
        Ok(form.map(|form| SparseVec { n, width, form }))
    }
}

impl Comm {
    /// The reduction of all ranks' vectors on `root`; `None` elsewhere. Collective.
    ///
    /// ```
    /// use skyphos::{Comm, IndexList, SparseVec};
    ///
    /// let ranks = Comm::local(2, &Default::default()).unwrap();
    /// let sums = ranks.map_ranks(|comm| {
    ///     let x = SparseVec::new(10, 1, IndexList::Narrow(vec![comm.rank(), 5]), vec![1.0, 2.0]).unwrap();
    ///     comm.reduce_to_root(&x, 1).run().unwrap().map(|sum| sum.entries())
    /// });
    /// assert_eq!(sums, [None, Some((vec![0, 1, 5], vec![1.0, 1.0, 4.0]))]);
    /// ```
    pub fn reduce_to_root<T: Element, X: VectorInput<T>>(
        &self,
        x: X,
        root: u32,
    ) -> CallBuilder<'_, ReduceToRoot<T, X>> {
        CallBuilder::new(self, ReduceToRoot { x, root, element: PhantomData })
    }
}
