//! Sums of outer products, by the way that should take the least time.

mod choose;
mod memory_check;
mod options;
mod sparse;

pub use choose::OuterTold;
pub use options::{OuterAlgorithm, OuterOptions, OuterShape};
pub use sparse::{GatheredSparsePairs, SparseOuterSum, SparsePairs, SparseSource};

use crate::Comm;
use crate::as_dense::reduce_array;
use crate::stopwatch::Stopwatch;
use crate::tuning::moved_bytes;
use crate::vouch;
use choose::{Chosen, choose};
use memory_check::check_memory;
use skyphos_core::collectives::gather::Schedule;
use skyphos_core::collectives::outer_product::{
    BlockAssignment, Exchange, Pairs, Terms, butterfly, by_owners, check_pairs, gather_factors, own_product,
    ring, ring_reduce_scatter, tell,
};
use skyphos_core::{Call, Endpoint, Traffic};
use skyphos_kernels::product::Factor;
use skyphos_tune::Observations;
use skyphos_types::{Element, Error, ReduceOp, Result};

/// A sum, and how it came about.
#[derive(Clone, Debug)]
pub struct OuterSum {
    /// What was done, and predicted.
    pub told: OuterTold,
    /// What it moved on this rank.
    pub traffic: Traffic,
}

/// Rows of all ranks' factors, in the order of ranks.
#[derive(Clone, Debug)]
pub struct GatheredPairs<T> {
    /// K rows of N numbers.
    pub a: Vec<T>,
    /// K rows of M.
    pub b: Vec<T>,
    /// What was done.
    pub sum: OuterSum,
}

impl Comm {
    /// Sums aᵀ b of all ranks into `out`: N by M on all ranks, or this rank's rows (`scatter`). Collective.
    ///
    /// # Errors
    /// `BadInput` for factors that do not fit, or more memory than there is; `Mismatch` where ranks have other shapes, types or
    /// options.
    pub fn outer_product_sum<T: Factor>(
        &self,
        shape: OuterShape,
        own: Pairs<'_, T>,
        out: &mut [T],
        options: &OuterOptions,
    ) -> Result<OuterSum> {
        let seen = *self.observed();
        let watch = Stopwatch::start(size_of_val(own.a));
        let sig = options.sig::<T>(shape, false);
        let sum = self.call((sig, options.arguments(false)), async |ep| {
            sum_on(ep, shape, own, out, options, seen).await
        })?;
        self.tuner().record(&watch.stop(), moved_bytes(sum.traffic), None);
        Ok(sum)
    }

    /// [`Comm::outer_product_sum`] that can go on by itself; gives `out` back.
    pub fn outer_product_sum_call<T: Factor, Out: AsMut<[T]> + Send + 'static>(
        &self,
        shape: OuterShape,
        (a, b): (impl AsRef<[T]> + Send + Sync + 'static, impl AsRef<[T]> + Send + Sync + 'static),
        mut out: Out,
        options: OuterOptions,
    ) -> Result<Call<(Out, OuterSum)>> {
        let seen = *self.observed();
        self.prepare((options.sig::<T>(shape, false), options.arguments(false)), None, move |ep| async move {
            let own = Pairs { a: a.as_ref(), b: b.as_ref() };
            let sum = sum_on(&ep, shape, own, out.as_mut(), &options, seen).await?;
            Ok((out, sum))
        })
    }

    /// The factors of all ranks instead of their product, for who applies them. Collective.
    pub fn gather_outer_factors_call<T: Factor>(
        &self,
        shape: OuterShape,
        (a, b): (impl AsRef<[T]> + Send + Sync + 'static, impl AsRef<[T]> + Send + Sync + 'static),
        options: OuterOptions,
    ) -> Result<Call<GatheredPairs<T>>> {
        let seen = *self.observed();
        self.prepare((options.sig::<T>(shape, true), options.arguments(true)), None, move |ep| async move {
            let own = Pairs { a: a.as_ref(), b: b.as_ref() };
            gather_on(&ep, shape, own, &options, seen).await
        })
    }
}

/// What all ranks said, and what follows from it.
struct Agreed {
    terms: Terms,
    chosen: Chosen,
}

async fn agree<T: Factor>(
    ep: &Endpoint,
    shape: OuterShape,
    options: &OuterOptions,
    factors: bool,
    seen: Observations,
) -> Result<Agreed> {
    options.check(factors)?;
    let words = choose::words::<T>(ep, shape, options, seen);
    let said = tell(ep, &words).await?;
    let counts = said.iter().map(|said| said[0] as usize).collect();
    let terms = Terms { n: shape.n, m: shape.m, pairs: counts };
    let chosen = choose::<T>(ep, &terms, options, factors, &said, seen)?;
    let layout = (chosen.told.algorithm, chosen.told.grid.unwrap_or((1, 1)));
    check_memory::<T>(ep, &terms, layout, (factors, options.scatter), &choose::memory(&said))?;
    Ok(Agreed { terms, chosen })
}

async fn sum_on<T: Factor>(
    ep: &Endpoint,
    shape: OuterShape,
    own: Pairs<'_, T>,
    out: &mut [T],
    options: &OuterOptions,
    seen: Observations,
) -> Result<OuterSum> {
    if !ep.is_sized() {
        check_pairs(shape.n, shape.m, shape.pairs, own.a.len(), own.b.len())?;
        let rows = if options.scatter {
            BlockAssignment::rows(ep.size(), ep.rank(), (shape.n, shape.m)).blocks[ep.rank() as usize]
                .rows
                .len()
        } else {
            shape.n
        };
        if rows.checked_mul(shape.m) != Some(out.len()) {
            let message = format!("out holds {} numbers, {rows} rows of {} are due", out.len(), shape.m);
            return Err(Error::bad_input(message));
        }
    }
    vouch::values(ep, own.a);
    vouch::values(ep, own.b);
    let Agreed { terms, chosen } = agree::<T>(ep, shape, options, false, seen).await?;
    run(ep, &terms, &chosen, own, out, options.scatter).await?;
    Ok(OuterSum { told: chosen.told, traffic: ep.traffic() })
}

async fn run<T: Factor>(
    ep: &Endpoint,
    terms: &Terms,
    chosen: &Chosen,
    own: Pairs<'_, T>,
    out: &mut [T],
    scatter: bool,
) -> Result<()> {
    let (size, me, of) = (ep.size(), ep.rank(), (terms.n, terms.m));
    let told = &chosen.told;
    match told.algorithm {
        OuterAlgorithm::Allgather => {
            let how = Exchange::Whole(told.exchange.unwrap_or(Schedule::Direct));
            let assignment = if scatter {
                BlockAssignment::rows(size, me, of)
            } else {
                BlockAssignment::whole(size, me, of)
            };
            by_owners(ep, terms, &assignment, how, own, out, scatter).await
        }
        OuterAlgorithm::Rabenseifner => {
            let assignment = match scatter {
                true => BlockAssignment::rows(size, me, of),
                false => BlockAssignment::new(ep.topology(), me, told.level, told.grid, of)?,
            };
            by_owners(ep, terms, &assignment, Exchange::Slices, own, out, scatter).await
        }
        OuterAlgorithm::Ring if scatter => ring_reduce_scatter(ep, terms, own, out).await,
        OuterAlgorithm::Ring => ring(ep, terms, own, out).await,
        OuterAlgorithm::Butterfly => butterfly(ep, terms, own, out).await,
        OuterAlgorithm::Allreduce => reduced(ep, terms, own, out).await,
        OuterAlgorithm::Auto => unreachable!("something was chosen"),
    }
}

/// Each rank's own product, then an allreduce of arrays.
async fn reduced<T: Factor>(ep: &Endpoint, terms: &Terms, own: Pairs<'_, T>, out: &mut [T]) -> Result<()> {
    if ep.is_sized() {
        own_product::<T>(ep, terms, own, &mut []);
        let made = Terms { pairs: vec![0; terms.pairs.len()], ..terms.clone() };
        return ring(ep, &made, own, out).await;
    }
    let sums_of = |len: usize| ep.node().pool().large(len * size_of::<T::Sum>());
    let mut values = sums_of(out.len());
    own_product(ep, terms, own, values.as_slice_mut());
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
    seen: Observations,
) -> Result<GatheredPairs<T>> {
    check_pairs(shape.n, shape.m, shape.pairs, own.a.len(), own.b.len())?;
    vouch::values(ep, own.a);
    vouch::values(ep, own.b);
    let Agreed { terms, chosen } = agree::<T>(ep, shape, options, true, seen).await?;
    let schedule = chosen.told.exchange.unwrap_or(Schedule::Direct);
    let gathered = gather_factors(ep, &terms, schedule, own).await?;
    let back = |sums: &[T::Sum]| {
        let mut numbers = vec![<T as Element>::ZERO; sums.len()];
        T::narrow(sums, &mut numbers);
        numbers
    };
    let (a, b) = (back(gathered.a.as_slice()), back(gathered.b.as_slice()));
    Ok(GatheredPairs { a, b, sum: OuterSum { told: chosen.told, traffic: ep.traffic() } })
}
