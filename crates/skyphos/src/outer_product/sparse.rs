//! Sums of outer products of sparse factors: the sum G is sparse while it has few entries.
//!
//! The algorithms are those for dense factors; factors are encoded like all sparse vectors. By `Allgather` every rank gets all
//! factors. By `Rabenseifner` ranks own rows of G, get the entries of a in their rows and all of b, and gather all rows. Otherwise an
//! allreduce of sparse vectors reduces the ranks' own products.

use super::options::{OuterAlgorithm, OuterOptions};
use super::{OuterChoice, OuterReport, OuterShape, narrowed};
use crate::Comm;
use crate::allreduce::allreduce_on;
use crate::allreduce_options::AllreduceOptions;
use crate::call_builder::{Body, CallBuilder};
use crate::input_checksum;
use crate::tuning::{Basis, start_profile};
use crate::vector_input::decode_all;
use skyphos_core::collectives::gather::{Item, Schedule, allgather_then, alltoall};
use skyphos_core::collectives::outer_product::{Level, gather_numbers};
use skyphos_core::frame::CallSig;
use skyphos_core::stream::encode;
use skyphos_core::{CallRequest, Endpoint};
use skyphos_kernels::product::Factor;
use skyphos_kernels::sparse_product::{SparseRow, sparse_product};
use skyphos_kernels::stream::{Form, IndexList, SparseVec, View, put_entries};
use skyphos_kernels::{Indices, split_ranges};
use skyphos_plan::outer::SparseOuterWork;
use skyphos_tune::{Algorithm, DenseThreshold, Observations, PROFILE_WORDS, agreed_profile};
use skyphos_types::{Element, Error, ReduceOp, Result, Round};
use std::marker::PhantomData;
use std::ops::Range;

/// First round of the gather of rows of G, after the rounds of factors.
const ROWS_ROUND: Round = Round(0x2100);

/// How many statistics a rank sends before its profile: its pairs, entries of a and of b, and multiply-adds of its own product.
const STATISTICS: usize = 4;

/// A rank's sparse factors. Number i of pair k has index k N + i in a, number j has index k M + j in b. Indices ascend.
#[derive(Clone, Copy, Debug)]
pub struct SparsePairs<'a, T> {
    /// Entries of a.
    pub a: (&'a [u64], &'a [T]),
    /// Entries of b.
    pub b: (&'a [u64], &'a [T]),
}

/// A sum of sparse factors: N M numbers, row after row.
#[derive(Clone, Debug)]
pub struct SparseOuterSum<T> {
    /// The sum, or the rows of this rank.
    pub sum: SparseVec<T>,
    /// The algorithm, its prediction and its traffic.
    pub report: OuterReport,
}

/// Sparse factors of all ranks, in the order of ranks.
#[derive(Clone, Debug)]
pub struct GatheredSparsePairs<T> {
    /// Index k N + i: number i of pair k, among the pairs of all ranks.
    pub a: (Vec<u64>, Vec<T>),
    /// Index k M + j.
    pub b: (Vec<u64>, Vec<T>),
    /// The exchange and its traffic.
    pub report: OuterReport,
}

/// Sparse factors as input of a collective. The method must return the same factors each time.
pub trait SparseFactors<T>: Send + Sync {
    /// The factors.
    fn pairs(&self) -> SparsePairs<'_, T>;
}

impl<T: Factor> SparseFactors<T> for SparsePairs<'_, T> {
    fn pairs(&self) -> SparsePairs<'_, T> {
        *self
    }
}

/// See [`Comm::sparse_outer_product_sum`].
pub struct SparseOuterProductSum<T, F> {
    shape: OuterShape,
    factors: F,
    observed: Observations,
    element: PhantomData<T>,
}

impl<T: Factor, F: SparseFactors<T>> Body for SparseOuterProductSum<T, F> {
    type Output = SparseOuterSum<T>;
    type Op = ();
    type Options = OuterOptions;

    fn request(&mut self, comm: &Comm, (): &(), options: &OuterOptions) -> CallRequest {
        self.observed = comm.tuner().observations;
        (sig::<T>(options, self.shape, false), options.arguments(false)).into()
    }

    async fn perform(self, ep: &Endpoint, (): &(), options: &OuterOptions) -> Result<SparseOuterSum<T>> {
        sum_on(ep, self.shape, self.factors.pairs(), options, self.observed).await
    }
}

/// See [`Comm::gather_sparse_outer_factors`].
pub struct GatherSparseOuterFactors<T, F> {
    shape: OuterShape,
    factors: F,
    observed: Observations,
    element: PhantomData<T>,
}

impl<T: Factor, F: SparseFactors<T>> Body for GatherSparseOuterFactors<T, F> {
    type Output = GatheredSparsePairs<T>;
    type Op = ();
    type Options = OuterOptions;

    fn request(&mut self, comm: &Comm, (): &(), options: &OuterOptions) -> CallRequest {
        self.observed = comm.tuner().observations;
        (sig::<T>(options, self.shape, true), options.arguments(true)).into()
    }

    async fn perform(self, ep: &Endpoint, (): &(), options: &OuterOptions) -> Result<GatheredSparsePairs<T>> {
        gather_on(ep, self.shape, self.factors.pairs(), options, self.observed).await
    }
}

impl Comm {
    /// Sums aᵀ b of all ranks' sparse factors. Collective.
    ///
    /// ```
    /// use skyphos::{Comm, OuterShape, SparsePairs};
    ///
    /// let ranks = Comm::local(2, &Default::default()).unwrap();
    /// ranks.map_ranks(|comm| {
    ///     let shape = OuterShape { n: 100, m: 100, pairs: 1 };
    ///     let factors = SparsePairs { a: (&[7], &[2.0]), b: (&[3], &[5.0]) };
    ///     let sum = comm.sparse_outer_product_sum(shape, factors).run().unwrap().sum;
    ///     assert_eq!(sum.entries(), (vec![703], vec![20.0])); // row 7, column 3
    /// });
    /// ```
    pub fn sparse_outer_product_sum<T: Factor, F: SparseFactors<T>>(
        &self,
        shape: OuterShape,
        factors: F,
    ) -> CallBuilder<'_, SparseOuterProductSum<T, F>> {
        let (observed, element) = (Observations::default(), PhantomData);
        CallBuilder::new(self, SparseOuterProductSum { shape, factors, observed, element })
    }

    /// The sparse factors of all ranks instead of their product. Collective.
    ///
    /// ```
    /// use skyphos::{Comm, OuterShape, SparsePairs};
    ///
    /// let ranks = Comm::local(2, &Default::default()).unwrap();
    /// ranks.map_ranks(|comm| {
    ///     let shape = OuterShape { n: 100, m: 100, pairs: 1 };
    ///     let factors = SparsePairs { a: (&[7], &[2.0]), b: (&[3], &[5.0]) };
    ///     let all = comm.gather_sparse_outer_factors(shape, factors).run().unwrap();
    ///     assert_eq!(all.a, (vec![7, 107], vec![2.0, 2.0])); // pairs 0 and 1
    /// });
    /// ```
    pub fn gather_sparse_outer_factors<T: Factor, F: SparseFactors<T>>(
        &self,
        shape: OuterShape,
        factors: F,
    ) -> CallBuilder<'_, GatherSparseOuterFactors<T, F>> {
        let (observed, element) = (Observations::default(), PhantomData);
        CallBuilder::new(self, GatherSparseOuterFactors { shape, factors, observed, element })
    }
}

/// The call's signature, which differs from that of dense factors.
fn sig<T: Element>(options: &OuterOptions, shape: OuterShape, factors: bool) -> CallSig {
    let sig = options.sig::<T>(shape, factors);
    CallSig { flags: 1, ..sig }
}

/// The sizes and the choice, on which all ranks agree.
struct Agreed {
    pairs: Vec<usize>,
    algorithm: OuterAlgorithm,
    exchange: Schedule,
    others: Vec<(String, f64)>,
    n: u64,
    m: u64,
    /// The largest number of pairs on one rank.
    max_pairs: u64,
}

impl Agreed {
    /// The size of the index space of a message: indices of a, then those of b.
    fn span(&self) -> u64 {
        self.max_pairs * (self.n + self.m)
    }

    fn choice(&self) -> OuterChoice {
        OuterChoice {
            algorithm: self.algorithm,
            exchange: (self.algorithm == OuterAlgorithm::Allgather).then_some(self.exchange),
            level: if self.algorithm == OuterAlgorithm::Allgather { Level::Rank } else { Level::All },
            grid: None,
            predicted: None,
            others: self.others.clone(),
            pairs: self.pairs.iter().sum(),
        }
    }
}

fn check(shape: OuterShape, list: &[u64], values: usize, width: usize, what: &str) -> Result<()> {
    let end = (shape.pairs as u64).saturating_mul(width as u64);
    let message = match () {
        () if list.len() != values => format!("{} indices and {values} values", list.len()),
        () if list.windows(2).any(|two| two[0] >= two[1]) => "indices that do not ascend".to_owned(),
        () if list.last().is_some_and(|last| *last >= end) => {
            format!("index {} beyond {} rows of {width}", list[list.len() - 1], shape.pairs)
        }
        () => return Ok(()),
    };
    Err(Error::bad_input(format!("sparse factor {what}: {message}")))
}

async fn agree<T: Factor>(
    ep: &Endpoint,
    shape: OuterShape,
    own: SparsePairs<'_, T>,
    options: &OuterOptions,
    factors: bool,
    observed: Observations,
) -> Result<Agreed> {
    options.check(factors)?;
    if options.grid.is_some() || options.level.is_some() {
        return Err(Error::bad_input("sparse factors: owners= and grid= need dense factors"));
    }
    if options.scatter && options.algorithm == OuterAlgorithm::Ring {
        return Err(Error::bad_input("sparse factors: scatter=True needs auto, allgather or rabenseifner"));
    }
    check(shape, own.a.0, own.a.1.len(), shape.n, "a")?;
    check(shape, own.b.0, own.b.1.len(), shape.m, "b")?;
    input_checksum::lists(ep, [Indices::U64(own.a.0), Indices::U64(own.b.0)], own.a.1);
    input_checksum::values(ep, own.b.1);
    let default = start_profile(&observed, ep);
    let b_ranges = ranges_of_pairs(shape.pairs, own.b.0, shape.m);
    let of_pair = |(pair, a_range): (usize, Range<usize>)| a_range.len() as f64 * b_ranges[pair].len() as f64;
    let multiply_adds: f64 =
        ranges_of_pairs(shape.pairs, own.a.0, shape.n).into_iter().enumerate().map(of_pair).sum();
    let mine = [shape.pairs as f64, own.a.0.len() as f64, own.b.0.len() as f64, multiply_adds];
    let words: Vec<f64> = mine.into_iter().chain(observed.profile_words(default)).collect();
    let gathered = gather_numbers(ep, &words).await?;
    if gathered.iter().any(|numbers| numbers.len() != STATISTICS + PROFILE_WORDS) {
        return Err(Error::bad_input("ranks sent statistics of different lengths about their factors"));
    }
    let column = |k: usize| -> Vec<f64> { gathered.iter().map(|numbers| numbers[k]).collect() };
    let sum = |k: usize| column(k).iter().sum::<f64>();
    let pairs: Vec<usize> = column(0).into_iter().map(|pairs| pairs as usize).collect();
    let (n, m, max_pairs) = (shape.n as u64, shape.m as u64, pairs.iter().copied().max().unwrap_or(0) as u64);
    let fits = n.checked_mul(m).is_some_and(|all| all < 1 << 63)
        && n.checked_add(m)
            .and_then(|width| width.checked_mul(max_pairs.max(1)))
            .is_some_and(|all| all < 1 << 63);
    if !fits {
        return Err(Error::bad_input(format!("a sum of {n} by {m} numbers has more than 2^63")));
    }
    let profile =
        agreed_profile(default, |k| if k < PROFILE_WORDS { column(STATISTICS + k) } else { Vec::new() });
    let work = SparseOuterWork {
        ranks: ep.size(),
        numbers: n as f64 * m as f64,
        a_entries: sum(1),
        b_entries: sum(2),
        multiply_adds: sum(3),
        bytes: size_of::<T>(),
        scatter: options.scatter,
    };
    let seconds_of = |algorithm| match algorithm {
        OuterAlgorithm::Allgather => work.allgather_s(&profile),
        OuterAlgorithm::Rabenseifner => work.owners_s(&profile),
        _ => work.allreduce_s(&profile),
    };
    let candidates: &[OuterAlgorithm] = match (options.algorithm, factors, options.scatter) {
        (_, true, _) => &[OuterAlgorithm::Allgather],
        (OuterAlgorithm::Auto, _, true) => &[OuterAlgorithm::Allgather, OuterAlgorithm::Rabenseifner],
        (OuterAlgorithm::Auto, ..) => {
            &[OuterAlgorithm::Allgather, OuterAlgorithm::Rabenseifner, OuterAlgorithm::Allreduce]
        }
        (named, ..) => &[named],
    };
    let mut ranked: Vec<_> = candidates.iter().map(|one| (*one, seconds_of(*one))).collect();
    ranked.sort_by(|a, b| a.1.total_cmp(&b.1));
    let (algorithm, _) = ranked.remove(0);
    let others = ranked.into_iter().map(|(one, seconds)| (one.name().to_owned(), seconds)).collect();
    let exchange = options.exchange.unwrap_or(Schedule::Direct);
    Ok(Agreed { pairs, algorithm, exchange, others, n, m, max_pairs })
}

/// Each pair's range of a list of indices k width + i, where k is the pair.
fn ranges_of_pairs(pairs: usize, list: &[u64], width: usize) -> Vec<Range<usize>> {
    let bound = |pair: usize| list.partition_point(|index| *index < pair as u64 * width as u64);
    let bounds: Vec<usize> = (0..=pairs).map(bound).collect();
    bounds.windows(2).map(|two| two[0]..two[1]).collect()
}

/// A message: the entries of a in some rows, then those of b.
fn message_entries<T: Factor>(
    agreed: &Agreed,
    own: SparsePairs<'_, T>,
    rows: Option<&Range<u64>>,
) -> (Vec<u64>, Vec<T>) {
    let (mut indices, mut values) = (Vec::new(), Vec::new());
    match rows {
        None => {
            indices.extend_from_slice(own.a.0);
            values.extend_from_slice(own.a.1);
        }
        Some(rows) => {
            let inside =
                own.a.0.iter().zip(own.a.1).filter(|(index, _)| rows.contains(&(**index % agreed.n)));
            inside.for_each(|(index, value)| {
                indices.push(*index);
                values.push(*value);
            });
        }
    }
    indices.extend(own.b.0.iter().map(|index| agreed.max_pairs * agreed.n + index));
    values.extend_from_slice(own.b.1);
    (indices, values)
}

/// Indices and values.
type Entries<S> = (Vec<u64>, Vec<S>);

/// Received entries of a rank: those of a and of b, by pair, with indices within the pair.
struct ReceivedFactors<S> {
    a: Vec<Entries<S>>,
    b: Vec<Entries<S>>,
}

/// Sorts the received entries of a rank by pair.
fn by_pair<T: Factor>(agreed: &Agreed, rank: usize, vector: &SparseVec<T>) -> ReceivedFactors<T::Sum> {
    let (list, values) = vector.entries();
    let mut wide = vec![<T::Sum as Element>::ZERO; values.len()];
    T::widen(&values, &mut wide);
    let first_of_b = agreed.max_pairs * agreed.n;
    let cut = list.partition_point(|index| *index < first_of_b);
    let pairs = agreed.pairs[rank];
    let part = |list: &[u64], values: &[T::Sum], width: u64, first: u64| {
        let inside: Vec<u64> = list.iter().map(|index| index - first).collect();
        let one = |(pair, at): (usize, Range<usize>)| {
            let base = pair as u64 * width;
            (inside[at.clone()].iter().map(|index| index - base).collect(), values[at].to_vec())
        };
        ranges_of_pairs(pairs, &inside, width as usize).into_iter().enumerate().map(one).collect()
    };
    ReceivedFactors {
        a: part(&list[..cut], &wide[..cut], agreed.n, 0),
        b: part(&list[cut..], &wide[cut..], agreed.m, first_of_b),
    }
}

/// The given rows of the sum of outer products of all received factors.
fn product<S: skyphos_kernels::product::Multiply>(
    all: &[ReceivedFactors<S>],
    rows: Range<u64>,
    m: u64,
) -> (Vec<u64>, Vec<S>) {
    let pairs: Vec<(SparseRow<'_, S>, SparseRow<'_, S>)> = all
        .iter()
        .flat_map(|rank| rank.a.iter().zip(&rank.b))
        .map(|(a, b)| (SparseRow { indices: &a.0, values: &a.1 }, SparseRow { indices: &b.0, values: &b.1 }))
        .collect();
    sparse_product(&pairs, rows, m)
}

async fn gathered<T: Factor>(
    ep: &Endpoint,
    agreed: &Agreed,
    own: SparsePairs<'_, T>,
) -> Result<Vec<ReceivedFactors<T::Sum>>> {
    let (indices, values) = message_entries(agreed, own, None);
    let view = View::Sparse { indices: Indices::U64(&indices), values: &values };
    let item = encode(ep, view, 1, 0, 0, agreed.span());
    let items = allgather_then(ep, Round(0), agreed.exchange, item, |_, _| Ok(())).await?;
    received_factors::<T>(ep, agreed, &items)
}

fn received_factors<T: Factor>(
    ep: &Endpoint,
    agreed: &Agreed,
    items: &[Item],
) -> Result<Vec<ReceivedFactors<T::Sum>>> {
    let all = decode_all::<T>(ep, (agreed.span(), 1, true), items)?;
    Ok(all.iter().enumerate().map(|(rank, vector)| by_pair(agreed, rank, vector)).collect())
}

/// The rows of G that a rank owns.
fn rows_at(agreed: &Agreed, size: u32, rank: u32) -> Range<u64> {
    let bounds = split_ranges(0, agreed.n, size);
    bounds[rank as usize]..bounds[rank as usize + 1]
}

/// A vector of `n` numbers; `first` is the index of number 0. Above the default threshold it is dense with a bitmap, else sparse.
fn sparse_or_dense<T: Element>(n: u64, first: u64, indices: Vec<u64>, values: Vec<T>) -> SparseVec<T> {
    let dense_above = DenseThreshold::Auto.density(n, size_of::<T>(), true) * n as f64;
    let form = match indices.len() as f64 > dense_above {
        false => {
            let indices = indices.into_iter().map(|index| index - first).collect();
            Form::Sparse { indices: IndexList::Wide(indices), values }
        }
        true => {
            let mut all = vec![T::ZERO; n as usize];
            let mut present = vec![0; (n as usize).div_ceil(64)];
            let positions = indices.iter().map(|index| (index - first) as usize);
            put_entries(&mut all, Some(&mut present), 1, positions, &values);
            Form::Dense { values: all, present: Some(present) }
        }
    };
    SparseVec { n, width: 1, form }
}

async fn sum_on<T: Factor>(
    ep: &Endpoint,
    shape: OuterShape,
    own: SparsePairs<'_, T>,
    options: &OuterOptions,
    observed: Observations,
) -> Result<SparseOuterSum<T>> {
    let agreed = agree(ep, shape, own, options, false, observed).await?;
    let (me, size, numbers) = (ep.rank(), ep.size(), agreed.n * agreed.m);
    let mine = rows_at(&agreed, size, me.0);
    let sum = match agreed.algorithm {
        OuterAlgorithm::Allgather => {
            let received = gathered(ep, &agreed, own).await?;
            let rows = if options.scatter { mine.clone() } else { 0..agreed.n };
            let (indices, values) = product(&received, rows.clone(), agreed.m);
            let n = (rows.end - rows.start) * agreed.m;
            sparse_or_dense(n, rows.start * agreed.m, indices, narrowed::<T>(&values))
        }
        OuterAlgorithm::Rabenseifner => {
            let items: Vec<Item> = (0..size)
                .map(|rank| {
                    let (indices, values) =
                        message_entries(&agreed, own, Some(&rows_at(&agreed, size, rank)));
                    let view = View::Sparse { indices: Indices::U64(&indices), values: &values };
                    encode(ep, view, 1, 0, 0, agreed.span())
                })
                .collect();
            let received = received_factors::<T>(ep, &agreed, &alltoall(ep, &items).await?)?;
            let (indices, values) = product(&received, mine.clone(), agreed.m);
            let values = narrowed::<T>(&values);
            match options.scatter {
                true => {
                    let n = (mine.end - mine.start) * agreed.m;
                    sparse_or_dense(n, mine.start * agreed.m, indices, values)
                }
                false => {
                    let view = View::Sparse { indices: Indices::U64(&indices), values: &values };
                    let item = encode(ep, view, 1, 0, 0, numbers);
                    let items = allgather_then(ep, ROWS_ROUND, Schedule::Direct, item, |_, _| Ok(())).await?;
                    let parts = decode_all::<T>(ep, (numbers, 1, true), &items)?;
                    let (mut indices, mut values) = (Vec::new(), Vec::new());
                    for part in parts {
                        let (list, numbers) = part.entries();
                        indices.extend(list);
                        values.extend(numbers);
                    }
                    sparse_or_dense(numbers, 0, indices, values)
                }
            }
        }
        other => {
            let (indices, values) = message_entries(&agreed, own, None);
            let vector = SparseVec {
                n: agreed.span(),
                width: 1,
                form: Form::Sparse { indices: IndexList::Wide(indices), values },
            };
            let received = by_pair(&agreed, me.index(), &vector);
            let (indices, values) = product(&[received], 0..agreed.n, agreed.m);
            let algorithm = match other {
                OuterAlgorithm::Ring => Algorithm::Ring,
                OuterAlgorithm::Butterfly => Algorithm::Butterfly,
                _ => Algorithm::Auto,
            };
            let options = AllreduceOptions { algorithm, ..AllreduceOptions::default() };
            let view = View::Sparse { indices: Indices::U64(&indices), values: &values };
            let basis = Basis { recalled: Default::default(), observed };
            let (done, _) = allreduce_on(ep, (numbers, 1), view, &ReduceOp::Sum, &options, basis).await?;
            let form = match done.sum.form {
                Form::Sparse { indices, values } => Form::Sparse { indices, values: narrowed::<T>(&values) },
                Form::Dense { values, present } => Form::Dense { values: narrowed::<T>(&values), present },
            };
            SparseVec { n: numbers, width: 1, form }
        }
    };
    Ok(SparseOuterSum { sum, report: OuterReport { choice: agreed.choice(), traffic: ep.traffic() } })
}

async fn gather_on<T: Factor>(
    ep: &Endpoint,
    shape: OuterShape,
    own: SparsePairs<'_, T>,
    options: &OuterOptions,
    observed: Observations,
) -> Result<GatheredSparsePairs<T>> {
    let agreed = agree(ep, shape, own, options, true, observed).await?;
    let received = gathered(ep, &agreed, own).await?;
    let joined = |width: u64, all: Vec<&Entries<T::Sum>>| {
        let (mut indices, mut values) = (Vec::new(), Vec::new());
        for (pair, (list, numbers)) in (0..).zip(all) {
            indices.extend(list.iter().map(|index| pair * width + index));
            values.extend(narrowed::<T>(numbers));
        }
        (indices, values)
    };
    let (a, b) = (
        joined(agreed.n, received.iter().flat_map(|rank| &rank.a).collect()),
        joined(agreed.m, received.iter().flat_map(|rank| &rank.b).collect()),
    );
    Ok(GatheredSparsePairs { a, b, report: OuterReport { choice: agreed.choice(), traffic: ep.traffic() } })
}
