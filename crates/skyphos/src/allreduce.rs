//! Allreduce of sparse vectors and dense arrays: which algorithm, and what all must agree on.

use crate::Comm;
use crate::configure::custom_tag;
use crate::quantize::QuantizeOptions;
use crate::vectors::{Source, is_wide};
use skyphos_core::butterfly::check_degrees;
use skyphos_core::collectives::allreduce::butterfly::{Parts, butterfly};
use skyphos_core::collectives::allreduce::gather_and_sum::gather_and_sum;
use skyphos_core::collectives::allreduce::recursive_doubling::recursive_doubling;
use skyphos_core::collectives::allreduce::{dense, ring};
use skyphos_core::frame::{CallKind, CallSig};
use skyphos_core::stream::{Split, Terms, survey};
use skyphos_core::{Call, Endpoint};
use skyphos_kernels::stream::{Form, Shape, SparseVec, View};
use skyphos_types::{Element, Error, ReduceOp, Result};

/// A schedule of allreduce.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// By the rule of [`choose`].
    #[default]
    Auto,
    /// Fewest rounds.
    RecursiveDoubling,
    /// SparCML's SSAR: parts stay sparse.
    SplitAllgather,
    /// SparCML's DSAR: reduced parts are dense.
    SplitAllgatherDense,
    /// Nested butterfly of any degrees.
    Butterfly,
    /// Around a ring.
    Ring,
    /// Everyone sends everything to everyone.
    Allgather,
    /// Dense arrays, each rank one range, directly between all.
    Dense,
    /// Dense arrays around a ring.
    DenseRing,
    /// Dense arrays by recursive halving and doubling.
    DenseRabenseifner,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Algorithm; 10] = [
        Algorithm::Auto,
        Algorithm::RecursiveDoubling,
        Algorithm::SplitAllgather,
        Algorithm::SplitAllgatherDense,
        Algorithm::Butterfly,
        Algorithm::Ring,
        Algorithm::Allgather,
        Algorithm::Dense,
        Algorithm::DenseRing,
        Algorithm::DenseRabenseifner,
    ];

    /// The name that users write.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Auto => "auto",
            Algorithm::RecursiveDoubling => "recursive_doubling",
            Algorithm::SplitAllgather => "split_allgather",
            Algorithm::SplitAllgatherDense => "split_allgather_dense",
            Algorithm::Butterfly => "butterfly",
            Algorithm::Ring => "ring",
            Algorithm::Allgather => "allgather",
            Algorithm::Dense => "dense",
            Algorithm::DenseRing => "dense_ring",
            Algorithm::DenseRabenseifner => "dense_rabenseifner",
        }
    }

    /// The algorithm a user named.
    pub fn from_name(name: &str) -> Result<Algorithm> {
        Algorithm::ALL.into_iter().find(|a| a.name() == name).ok_or_else(|| {
            let known: Vec<_> = Algorithm::ALL.iter().map(|a| a.name()).collect();
            Error::bad_input(format!("unknown algorithm {name:?}: use one of {}", known.join(", ")))
        })
    }

    /// Whether it is for dense arrays.
    pub fn is_dense(self) -> bool {
        matches!(self, Algorithm::Dense | Algorithm::DenseRing | Algorithm::DenseRabenseifner)
    }
}

/// Entries per position at which folding into dense rows becomes faster than collecting entries (measured:
/// 0.25 to 0.35 for 4-byte values).
const SPEED_CROSSOVER: f64 = 0.3;

/// When a vector turns dense.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum DenseThreshold {
    /// At the smaller of the paper's crossover and the measured one.
    #[default]
    Auto,
    /// N·isize/(c + isize) entries, for indices of c bytes and values of isize (SparCML §5.1).
    Paper,
    /// Above this many entries.
    Entries(u64),
}

impl DenseThreshold {
    /// As entries per position.
    fn density(self, n: u64, row_bytes: usize, index_bytes: usize) -> f64 {
        let paper = row_bytes as f64 / (row_bytes + index_bytes) as f64;
        match self {
            DenseThreshold::Auto => paper.min(SPEED_CROSSOVER),
            DenseThreshold::Paper => paper,
            DenseThreshold::Entries(entries) => entries as f64 / n.max(1) as f64,
        }
    }
}

/// Settings of [`Comm::allreduce`]. All ranks must pass the same.
#[derive(Clone, Debug, Default)]
pub struct AllreduceOptions {
    /// The schedule.
    pub algorithm: Algorithm,
    /// Layers of the butterfly; `None`: one.
    pub degrees: Option<Vec<u32>>,
    /// How ranges are cut.
    pub split: Split,
    /// When vectors turn dense.
    pub dense_threshold: DenseThreshold,
    /// What is quantised, if anything.
    pub quantize: Option<QuantizeOptions>,
}

impl AllreduceOptions {
    pub(crate) fn sig<T: Element>(&self, kind: CallKind, op: &ReduceOp, n: u64, width: usize) -> CallSig {
        let mut extra = self.algorithm as u32 | (self.split as u32) << 8;
        let mut mix = |word: u32| extra = (extra ^ word).wrapping_mul(0x9e37_79b1).rotate_left(13);
        self.degrees.iter().flatten().for_each(|d| mix(*d));
        match self.dense_threshold {
            DenseThreshold::Auto => {}
            DenseThreshold::Paper => mix(1),
            DenseThreshold::Entries(entries) => mix((entries ^ entries >> 32) as u32 | 2),
        }
        self.quantize.iter().flat_map(QuantizeOptions::words).for_each(mix);
        CallSig {
            kind,
            op: op.code(),
            dtype: T::DTYPE as u8,
            flags: custom_tag(op),
            width: u32::try_from(width).unwrap_or(u32::MAX),
            n,
            extra,
        }
    }
}

/// Largest vector (mean over the ranks) for which the number of rounds counts most.
const SMALL_BYTES: f64 = 16.0 * 1024.0;

/// The rule behind `auto`, for P ranks with `entries` on average of rows of `row_bytes`: recursive doubling for
/// small vectors and groups of two; otherwise the split (a butterfly of one layer), whose parts are sparse or dense
/// as each is smaller.
pub fn choose(ranks: u32, entries: f64, row_bytes: usize) -> Algorithm {
    match ranks <= 2 || entries * (row_bytes + 4) as f64 <= SMALL_BYTES {
        true => Algorithm::RecursiveDoubling,
        false => Algorithm::Butterfly,
    }
}

impl Comm {
    /// The reduction of all ranks' vectors of `n` rows of `width` numbers, on every rank.
    ///
    /// Collective. The result is sparse or dense, as its density and the algorithm make it; an index that no rank
    /// holds is absent.
    pub fn allreduce<T: Element>(
        &self,
        n: u64,
        width: usize,
        view: View<'_, T>,
        op: &ReduceOp,
        options: &AllreduceOptions,
    ) -> Result<SparseVec<T>> {
        self.allreduce_and_tell(n, width, view, op, options, None)
    }

    /// As [`Comm::allreduce`]. Where `options` quantise inputs, `sent` is filled with what the values of this rank's
    /// entries became.
    pub fn allreduce_and_tell<T: Element>(
        &self,
        n: u64,
        width: usize,
        view: View<'_, T>,
        op: &ReduceOp,
        options: &AllreduceOptions,
        sent: Option<&mut Vec<T>>,
    ) -> Result<SparseVec<T>> {
        let sig = options.sig::<T>(CallKind::Allreduce, op, n, width);
        self.call(sig, async |ep| allreduce_on(ep, (n, width), view, op, options, sent).await)
    }

    /// [`Comm::allreduce`] that can go on by itself.
    pub fn allreduce_call<T: Element>(
        &self,
        n: u64,
        width: usize,
        x: impl Source<T>,
        op: ReduceOp,
        options: AllreduceOptions,
    ) -> Result<Call<SparseVec<T>>> {
        let sig = options.sig::<T>(CallKind::Allreduce, &op, n, width);
        self.prepare(sig, Some(&op.clone()), move |ep| async move {
            allreduce_on(&ep, (n, width), x.view(), &op, &options, None).await
        })
    }

    /// Reduces the dense arrays of all ranks into `out`; all have the same length. Collective.
    pub fn allreduce_dense<T: Element>(
        &self,
        values: &[T],
        out: &mut [T],
        op: &ReduceOp,
        options: &AllreduceOptions,
    ) -> Result<()> {
        let sig = options.sig::<T>(CallKind::AllreduceDense, op, values.len() as u64, 1);
        self.call(sig, async |ep| allreduce_dense_on(ep, values, out, op, options).await)
    }

    /// [`Comm::allreduce_dense`] that can go on by itself; gives `out` back.
    pub fn allreduce_dense_call<T: Element, Out: AsMut<[T]> + Send + 'static>(
        &self,
        values: impl AsRef<[T]> + Send + 'static,
        mut out: Out,
        op: ReduceOp,
        options: AllreduceOptions,
    ) -> Result<Call<Out>> {
        let sig = options.sig::<T>(CallKind::AllreduceDense, &op, values.as_ref().len() as u64, 1);
        self.prepare(sig, Some(&op.clone()), move |ep| async move {
            allreduce_dense_on(&ep, values.as_ref(), out.as_mut(), &op, &options).await?;
            Ok(out)
        })
    }
}

async fn allreduce_on<T: Element>(
    ep: &Endpoint,
    (n, width): (u64, usize),
    view: View<'_, T>,
    op: &ReduceOp,
    options: &AllreduceOptions,
    sent: Option<&mut Vec<T>>,
) -> Result<SparseVec<T>> {
    op.check(T::DTYPE)?;
    view.check(n, width)?;
    if let Some(degrees) = &options.degrees {
        check_degrees(degrees, ep.size())?;
    }
    let form = run(ep, n, width, view, op, options, sent).await?;
    Ok(SparseVec { n, width, form })
}

async fn allreduce_dense_on<T: Element>(
    ep: &Endpoint,
    values: &[T],
    out: &mut [T],
    op: &ReduceOp,
    options: &AllreduceOptions,
) -> Result<()> {
    op.check(T::DTYPE)?;
    if values.len() != out.len() {
        let message = format!("out holds {} numbers, the array {}", out.len(), values.len());
        return Err(Error::bad_input(message));
    }
    if options.quantize.is_some() {
        return quantised_dense(ep, values, out, op, options).await;
    }
    match options.algorithm {
        Algorithm::Auto | Algorithm::Dense => dense::direct(ep, op, values, out).await,
        Algorithm::DenseRing | Algorithm::DenseRabenseifner => {
            out.copy_from_slice(values);
            match options.algorithm {
                Algorithm::DenseRing => dense::ring(ep, op, out).await,
                _ => dense::rabenseifner(ep, op, out).await,
            }
        }
        other => Err(for_sparse_vectors(other)),
    }
}

/// How vectors are stored on the way, and the result.
pub(crate) fn terms<'a, T: Element>(
    n: u64,
    width: usize,
    view: &View<'_, T>,
    op: &'a ReduceOp,
    options: &AllreduceOptions,
) -> Terms<'a> {
    let wide = is_wide(n, view);
    let dense_above = options.dense_threshold.density(n, width * size_of::<T>(), if wide { 8 } else { 4 });
    Terms { op, n, shape: Shape { width, wide, dense_above, with_present: true }, precision: None }
}

/// Refuses a dense vector that this machine cannot hold.
fn check_room<T>(n: u64, width: usize) -> Result<()> {
    let bytes = usize::try_from(n).ok().and_then(|n| n.checked_mul(width * size_of::<T>()));
    match bytes.map(|bytes| Vec::<u8>::new().try_reserve_exact(bytes)) {
        Some(Ok(())) => Ok(()),
        _ => Err(Error::bad_input(format!(
            "a dense vector of n = {n} rows of width {width} does not fit the memory: use a sparse algorithm"
        ))),
    }
}

fn for_sparse_vectors(algorithm: Algorithm) -> Error {
    Error::bad_input(format!("algorithm={:?} is for sparse vectors", algorithm.name()))
}

/// An allreduce of dense arrays whose reduced ranges, or inputs, are quantised: DSAR.
async fn quantised_dense<T: Element>(
    ep: &Endpoint,
    values: &[T],
    out: &mut [T],
    op: &ReduceOp,
    options: &AllreduceOptions,
) -> Result<()> {
    let dsar = match options.algorithm {
        Algorithm::Auto | Algorithm::Dense => Algorithm::SplitAllgatherDense,
        other if !other.is_dense() => return Err(for_sparse_vectors(other)),
        other => {
            return Err(Error::bad_input(format!(
                "algorithm={:?} adds up on the way what it would have to quantise anew each time: with quantize= use \
                 auto, dense or an algorithm for sparse vectors",
                other.name()
            )));
        }
    };
    let options = AllreduceOptions { algorithm: dsar, ..options.clone() };
    let view = View::Dense { values, present: None };
    let (Form::Sparse { values, .. } | Form::Dense { values, .. }) =
        run(ep, values.len() as u64, 1, view, op, &options, None).await?;
    out.copy_from_slice(&values);
    Ok(())
}

async fn run<T: Element>(
    ep: &Endpoint,
    n: u64,
    width: usize,
    view: View<'_, T>,
    op: &ReduceOp,
    options: &AllreduceOptions,
    sent: Option<&mut Vec<T>>,
) -> Result<Form<T>> {
    let mut terms = terms::<T>(n, width, &view, op, options);
    let codec = options.quantize.map(|q| q.check(op, T::DTYPE, width)).transpose()?;
    let (row_bytes, dense_above) = (width * size_of::<T>(), terms.shape.dense_above);
    let one_layer = [ep.size()];
    let degrees = options.degrees.as_deref().unwrap_or(&one_layer);
    let mut algorithm = options.algorithm;
    // Below the paper's crossover a dense vector is the larger one.
    let asked_for = matches!(options.dense_threshold, DenseThreshold::Entries(_))
        && dense_above < DenseThreshold::Paper.density(n, row_bytes, 4);
    if algorithm == Algorithm::SplitAllgatherDense || asked_for {
        check_room::<T>(n, width)?;
    }
    let mut survey_of_all = None;
    if algorithm == Algorithm::Auto {
        let survey = survey(ep, view, width, n).await?;
        algorithm = choose(ep.size(), survey.mean_entries(), row_bytes);
        if matches!(op, ReduceOp::MeanPresent) {
            algorithm = Algorithm::SplitAllgather;
        }
        algorithm = options.quantize.map_or(algorithm, |q| q.or_one_that_can(algorithm));
        survey_of_all = Some(survey);
    }
    if matches!(op, ReduceOp::MeanPresent) {
        let single = degrees.len() == 1;
        match algorithm {
            Algorithm::SplitAllgather | Algorithm::Allgather => {}
            Algorithm::Butterfly if single => {}
            other => {
                return Err(Error::bad_input(format!(
                    "op=\"mean_present\" counts the ranks that had an entry, which algorithm={:?} loses on the way: use \
                     split_allgather or allgather",
                    other.name()
                )));
            }
        }
    }
    options.quantize.map_or(Ok(()), |q| q.check_algorithm(algorithm))?;
    // Dense parts are as large as their ranges, whatever is in them.
    let split = if algorithm == Algorithm::SplitAllgatherDense { Split::Even } else { options.split };
    let bounds = match (algorithm, split, survey_of_all) {
        (Algorithm::RecursiveDoubling | Algorithm::Allgather, ..) => Vec::new(),
        (_, Split::Quantiles, Some(survey)) => survey.bounds(ep.size()),
        (_, split, _) => skyphos_core::stream::bounds(ep, split, view, width, n, ep.size()).await?,
    };
    let input;
    if let (Some(quantize), Some(codec)) = (&options.quantize, codec) {
        let parts = if bounds.is_empty() { &[0, n] } else { &bounds[..] };
        input = quantize.input_of(ep, view, codec, parts, sent)?;
        terms.precision = Some(quantize.precision(codec, &input));
    }
    match algorithm {
        Algorithm::RecursiveDoubling => recursive_doubling(ep, view, terms).await,
        Algorithm::Allgather => gather_and_sum(ep, view, terms).await,
        Algorithm::Ring => ring::ring(ep, view, terms, bounds).await,
        Algorithm::SplitAllgather => butterfly(ep, view, terms, &one_layer, bounds, Parts::Sparse).await,
        Algorithm::SplitAllgatherDense => butterfly(ep, view, terms, &one_layer, bounds, Parts::Dense).await,
        Algorithm::Butterfly => butterfly(ep, view, terms, degrees, bounds, Parts::Auto).await,
        dense if dense.is_dense() => Err(Error::bad_input(format!(
            "algorithm={:?} is for dense arrays: hand in an array, or use split_allgather_dense",
            dense.name()
        ))),
        _ => unreachable!("auto has been replaced"),
    }
}
