//! Sums of outer products: G = aᵀ b over the pairs of all ranks. `auto` runs the algorithm with the least predicted time.

mod choice;
mod memory_check;
mod options;
mod sparse;

pub use choice::OuterChoice;
pub use options::{OuterAlgorithm, OuterOptions, OuterShape};
pub use sparse::{GatheredSparsePairs, SparseFactors, SparseOuterSum, SparsePairs};

use crate::Comm;
use crate::as_dense::reduce_array;
use crate::call_builder::{Body, CallBuilder};
use crate::input_checksum;
use crate::stopwatch::Stopwatch;
use crate::tuning::moved_bytes;
use choice::choose;
use memory_check::check_memory;
use skyphos_core::collectives::gather::Schedule;
use skyphos_core::collectives::outer_product::{
    BlockAssignment, Exchange, Pairs, ProductShape, butterfly, by_owners, check_pairs, gather_factors,
    gather_numbers, own_product, ring, ring_reduce_scatter,
};
use skyphos_core::{CallRequest, Endpoint, Traffic};
use skyphos_kernels::product::Factor;
use skyphos_tune::Observations;
use skyphos_tune::outer::OuterNumbers;
use skyphos_types::{Element, Error, ReduceOp, Result};
use std::marker::PhantomData;

/// The report of a sum.
#[derive(Clone, Debug)]
pub struct OuterReport {
    /// The algorithm and its prediction.
    pub choice: OuterChoice,
    /// Bytes and frames on this rank.
    pub traffic: Traffic,
}

/// The result of [`Comm::outer_product_sum`].
#[derive(Clone, Debug)]
pub struct OuterProduct<Out> {
    /// The array with the sum.
    pub out: Out,
    /// The algorithm, its prediction and its traffic.
    pub report: OuterReport,
}

/// Rows of all ranks' factors, in rank order.
#[derive(Clone, Debug)]
pub struct GatheredPairs<T> {
    /// K rows of N numbers, for the K pairs of all ranks.
    pub a: Vec<T>,
    /// K rows of M numbers.
    pub b: Vec<T>,
    /// The exchange, its prediction and its traffic.
    pub report: OuterReport,
}

/// See [`Comm::outer_product_sum`].
pub struct OuterProductSum<T, A, B, Out> {
    shape: OuterShape,
    factors: (A, B),
    out: Out,
    observed: Observations,
    element: PhantomData<T>,
}

impl<T, A, B, Out> Body for OuterProductSum<T, A, B, Out>
where
    T: Factor,
    A: AsRef<[T]> + Send + Sync,
    B: AsRef<[T]> + Send + Sync,
    Out: AsMut<[T]> + Send,
{
    type Output = OuterProduct<Out>;
    type Op = ();
    type Options = OuterOptions;

    fn request(&mut self, comm: &Comm, (): &(), options: &OuterOptions) -> CallRequest {
        self.observed = comm.tuner().observations;
        (options.sig::<T>(self.shape, false), options.arguments(false)).into()
    }

    async fn perform(mut self, ep: &Endpoint, (): &(), options: &OuterOptions) -> Result<OuterProduct<Out>> {
        let own = Pairs { a: self.factors.0.as_ref(), b: self.factors.1.as_ref() };
        let report = sum_on(ep, self.shape, own, self.out.as_mut(), options, self.observed).await?;
        Ok(OuterProduct { out: self.out, report })
    }

    fn run(mut self, comm: &Comm, (): &(), options: &OuterOptions) -> Result<OuterProduct<Out>> {
        let watch = Stopwatch::start(size_of_val(self.factors.0.as_ref()));
        let request = self.request(comm, &(), options);
        let done = comm.call(request, async |ep| self.perform(ep, &(), options).await)?;
        comm.tuner().record(&watch.stop(), moved_bytes(done.report.traffic), None);
        Ok(done)
    }
}

/// See [`Comm::gather_outer_factors`].
pub struct GatherOuterFactors<T, A, B> {
    shape: OuterShape,
    factors: (A, B),
    observed: Observations,
    element: PhantomData<T>,
}

impl<T, A, B> Body for GatherOuterFactors<T, A, B>
where
    T: Factor,
    A: AsRef<[T]> + Send + Sync,
    B: AsRef<[T]> + Send + Sync,
{
    type Output = GatheredPairs<T>;
    type Op = ();
    type Options = OuterOptions;

    fn request(&mut self, comm: &Comm, (): &(), options: &OuterOptions) -> CallRequest {
        self.observed = comm.tuner().observations;
        (options.sig::<T>(self.shape, true), options.arguments(true)).into()
    }

    async fn perform(self, ep: &Endpoint, (): &(), options: &OuterOptions) -> Result<GatheredPairs<T>> {
        let own = Pairs { a: self.factors.0.as_ref(), b: self.factors.1.as_ref() };
        gather_on(ep, self.shape, own, options, self.observed).await
    }
}

impl Comm {
    /// Sums aᵀ b of all ranks into `out`: N by M numbers on all ranks, or this rank's rows (`scatter`). `factors` are a and b, with
    /// one row per pair. Collective.
    ///
    /// # Errors
    /// `BadInput` for factors of a wrong size, or if the sum does not fit memory; `Mismatch` if ranks have different shapes, types
    /// or options.
    ///
    /// ```
    /// use skyphos::{Comm, OuterShape};
    ///
    /// let ranks = Comm::local(2, &Default::default()).unwrap();
    /// ranks.map_ranks(|comm| {
    ///     let shape = OuterShape { n: 2, m: 1, pairs: 1 };
    ///     let mut sum = [0.0; 2];
    ///     comm.outer_product_sum(shape, ([1.0, 2.0], [3.0]), &mut sum).run().unwrap();
    ///     assert_eq!(sum, [6.0, 12.0]); // of both ranks
    /// });
    /// ```
    pub fn outer_product_sum<T, A, B, Out>(
        &self,
        shape: OuterShape,
        factors: (A, B),
        out: Out,
    ) -> CallBuilder<'_, OuterProductSum<T, A, B, Out>>
    where
        T: Factor,
        A: AsRef<[T]> + Send + Sync,
        B: AsRef<[T]> + Send + Sync,
        Out: AsMut<[T]> + Send,
    {
        CallBuilder::new(
            self,
            OuterProductSum { shape, factors, out, observed: Observations::default(), element: PhantomData },
        )
    }

    /// The factors of all ranks instead of their product, for a caller that applies them. Collective.
    ///
    /// ```
    /// use skyphos::{Comm, OuterShape};
    ///
    /// let ranks = Comm::local(2, &Default::default()).unwrap();
    /// ranks.map_ranks(|comm| {
    ///     let shape = OuterShape { n: 2, m: 1, pairs: 1 };
    ///     let all = comm.gather_outer_factors(shape, ([1.0, 2.0], [3.0])).run().unwrap();
    ///     assert_eq!((all.a, all.b), (vec![1.0, 2.0, 1.0, 2.0], vec![3.0, 3.0]));
    /// });
    /// ```
    pub fn gather_outer_factors<T, A, B>(
        &self,
        shape: OuterShape,
        factors: (A, B),
    ) -> CallBuilder<'_, GatherOuterFactors<T, A, B>>
    where
        T: Factor,
        A: AsRef<[T]> + Send + Sync,
        B: AsRef<[T]> + Send + Sync,
    {
        CallBuilder::new(
            self,
            GatherOuterFactors { shape, factors, observed: Observations::default(), element: PhantomData },
        )
    }
}

/// The sizes and the choice, on which all ranks agree.
struct Agreed {
    product: ProductShape,
    choice: OuterChoice,
}

async fn agree<T: Factor>(
    ep: &Endpoint,
    shape: OuterShape,
    options: &OuterOptions,
    factors: bool,
    observed: Observations,
) -> Result<Agreed> {
    options.check(factors)?;
    let own = choice::numbers::<T>(ep, shape, options, observed);
    let messages = gather_numbers(ep, &own.words()).await?;
    let all: Option<Vec<_>> = messages.iter().map(|words| OuterNumbers::from_words(words)).collect();
    let all = all
        .ok_or_else(|| Error::bad_input("ranks sent statistics of different lengths about their factors"))?;
    let pairs = all.iter().map(|one| one.pairs).collect();
    let product = ProductShape { n: shape.n, m: shape.m, pairs };
    let choice = choose::<T>(ep, &product, options, factors, &all, observed);
    let layout = (choice.algorithm, choice.grid.unwrap_or((1, 1)));
    check_memory::<T>(ep, &product, layout, (factors, options.scatter), &all)?;
    Ok(Agreed { product, choice })
}

async fn sum_on<T: Factor>(
    ep: &Endpoint,
    shape: OuterShape,
    own: Pairs<'_, T>,
    out: &mut [T],
    options: &OuterOptions,
    observed: Observations,
) -> Result<OuterReport> {
    if !ep.is_sized() {
        check_pairs(shape.n, shape.m, shape.pairs, own.a.len(), own.b.len())?;
        let rows = if options.scatter {
            BlockAssignment::rows(ep.size(), ep.rank().0, (shape.n, shape.m)).blocks[ep.rank().index()]
                .rows
                .len()
        } else {
            shape.n
        };
        if rows.checked_mul(shape.m) != Some(out.len()) {
            let message = format!("out holds {} numbers, not {rows} rows of {}", out.len(), shape.m);
            return Err(Error::bad_input(message));
        }
    }
    input_checksum::values(ep, own.a);
    input_checksum::values(ep, own.b);
    let Agreed { product, choice } = agree::<T>(ep, shape, options, false, observed).await?;
    run(ep, &product, &choice, own, out, options.scatter).await?;
    Ok(OuterReport { choice, traffic: ep.traffic() })
}

async fn run<T: Factor>(
    ep: &Endpoint,
    product: &ProductShape,
    choice: &OuterChoice,
    own: Pairs<'_, T>,
    out: &mut [T],
    scatter: bool,
) -> Result<()> {
    let (size, me, dims) = (ep.size(), ep.rank(), (product.n, product.m));
    match choice.algorithm {
        OuterAlgorithm::Allgather => {
            let exchange = Exchange::Whole(choice.exchange.unwrap_or(Schedule::Direct));
            let assignment = if scatter {
                BlockAssignment::rows(size, me.0, dims)
            } else {
                BlockAssignment::whole(size, me.0, dims)
            };
            by_owners(ep, product, &assignment, exchange, own, out, scatter).await
        }
        OuterAlgorithm::Rabenseifner => {
            let assignment = match scatter {
                true => BlockAssignment::rows(size, me.0, dims),
                false => BlockAssignment::new(ep.topology(), me.0, choice.level, choice.grid, dims)?,
            };
            by_owners(ep, product, &assignment, Exchange::Slices, own, out, scatter).await
        }
        OuterAlgorithm::Ring if scatter => ring_reduce_scatter(ep, product, own, out).await,
        OuterAlgorithm::Ring => ring(ep, product, own, out).await,
        OuterAlgorithm::Butterfly => butterfly(ep, product, own, out).await,
        OuterAlgorithm::Allreduce => allreduce_products(ep, product, own, out).await,
        OuterAlgorithm::Auto => unreachable!("an algorithm was chosen"),
    }
}

/// Computes each rank's own product, then runs an allreduce of arrays.
async fn allreduce_products<T: Factor>(
    ep: &Endpoint,
    product: &ProductShape,
    own: Pairs<'_, T>,
    out: &mut [T],
) -> Result<()> {
    if ep.is_sized() {
        own_product::<T>(ep, product, own, &mut []);
        let without_pairs = ProductShape { pairs: vec![0; product.pairs.len()], ..product.clone() };
        return ring(ep, &without_pairs, own, out).await;
    }
    let sums_of = |len: usize| ep.node().pool().large(len * size_of::<T::Sum>());
    let mut values = sums_of(out.len());
    own_product(ep, product, own, values.as_slice_mut());
    let values: &[T::Sum] = values.as_slice();
    let op = ReduceOp::Sum;
    if let Some(sums) = T::as_sums(out) {
        reduce_array(ep, crate::Algorithm::Auto, &op, values, sums).await?;
        return Ok(());
    }
    let mut sums = sums_of(out.len());
    reduce_array(ep, crate::Algorithm::Auto, &op, values, sums.as_slice_mut::<T::Sum>()).await?;
    T::narrow(sums.as_slice(), out);
    Ok(())
}

async fn gather_on<T: Factor>(
    ep: &Endpoint,
    shape: OuterShape,
    own: Pairs<'_, T>,
    options: &OuterOptions,
    observed: Observations,
) -> Result<GatheredPairs<T>> {
    check_pairs(shape.n, shape.m, shape.pairs, own.a.len(), own.b.len())?;
    input_checksum::values(ep, own.a);
    input_checksum::values(ep, own.b);
    let Agreed { product, choice } = agree::<T>(ep, shape, options, true, observed).await?;
    let schedule = choice.exchange.unwrap_or(Schedule::Direct);
    let gathered = gather_factors(ep, &product, schedule, own).await?;
    let (a, b) = (narrowed(gathered.a.as_slice()), narrowed(gathered.b.as_slice()));
    Ok(GatheredPairs { a, b, report: OuterReport { choice, traffic: ep.traffic() } })
}

/// Converts sums to the type of the factors.
fn narrowed<T: Factor>(values: &[T::Sum]) -> Vec<T> {
    let mut numbers = vec![<T as Element>::ZERO; values.len()];
    T::narrow(values, &mut numbers);
    numbers
}
