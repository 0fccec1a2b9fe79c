//! How a reduction of sparse vectors is done: as earlier calls of its kind, as asked, or by a survey of all ranks.

use crate::algorithm::{Algorithm, AllreduceOptions, may_go_by_mpi};
use crate::choose::{Choice, Data, OTHERS, Reduction, predict, ranked};
use crate::corrections::Corrections;
use crate::memory::{Known, Learned, MOST_TRIES, MOST_WAYS, Recalled, Tried, is_short, nothing};
use crate::observe::{Observed, agreed};
use skyphos_core::Endpoint;
use skyphos_core::collectives::{Split, Survey, bounds, largest, survey};
use skyphos_kernels::stream::View;
use skyphos_plan::{Profile, Union};
use skyphos_types::{Element, Error, ReduceOp, Result};
use std::sync::Arc;

/// An algorithm that is predicted to take so much longer than the best one is worth a try, where a call should take less
/// than the first number of seconds: predictions are off by about as much, those of long calls by less.
const WORTH_A_TRY: [(f64, f64); 2] = [(50e-3, 1.4), (f64::INFINITY, 1.15)];

/// One that took so much longer than the best one is not tried again.
const WORTH_ANOTHER_TRY: f64 = 1.25;

/// Ways that are tried again, at most.
const AGAIN: usize = 2;

/// Rounds of tries: of short calls, and of others.
const ROUNDS: [u32; 2] = [3, 2];

/// The link is another one than was thought when it carries so many times as much, or as little.
const ANOTHER_LINK: f64 = 1.5;

/// Arrays that are made because of a hint alone, nobody having been asked, are at most this large.
const BELIEVED_BYTES: u64 = 64 << 20;

/// What a decision may rely on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Basis {
    pub(crate) recalled: Recalled,
    pub(crate) seen: Observed,
}

/// How a call is done.
pub(crate) struct Decided {
    pub(crate) known: Known,
    /// What a sample said, if one was taken.
    pub(crate) learned: Option<Learned>,
    /// Entries that the reduction should have, if all were asked.
    pub(crate) entries: Option<u64>,
}

impl Decided {
    fn by(known: Known, learned: Option<Learned>) -> Decided {
        Decided { known, learned, entries: None }
    }
}

/// Decides how a call is done. `dense_above`: entries per position above which parts turn dense.
#[allow(clippy::too_many_arguments, reason = "one call and what it relies on")]
pub(crate) async fn decide<T: Element>(
    ep: &Endpoint,
    what: Reduction,
    (n, width): (u64, usize),
    view: View<'_, T>,
    dense_above: f64,
    op: &ReduceOp,
    options: &AllreduceOptions,
    basis: Basis,
) -> Result<Decided> {
    check_hint(n, options.expected_nnz)?;
    let Recalled { known, tried } = basis.recalled;
    if let Some(known) = known {
        return Ok(Decided::by(known, None));
    }
    if options.algorithm != Algorithm::Auto {
        check_algorithm(options.algorithm, op, options)?;
        options.algorithm.check_transport(ep, op, T::DTYPE)?;
        check_layers(options)?;
        let (algorithm, split) = (options.algorithm, split_for(options.algorithm, options.split));
        let bounds = match has_ranges(algorithm) {
            true => bounds(ep, split, view, width, n, ep.size()).await?,
            false => Vec::new(),
        };
        let asked = options.degrees.clone().filter(|_| algorithm == Algorithm::Butterfly);
        let known = Known { algorithm, degrees: asked.unwrap_or_default(), bounds, choice: None };
        let sampled = has_ranges(algorithm) && split == Split::Quantiles && ep.size() > 1;
        let learned = sampled.then(|| Learned { next: Tried::begin(vec![known.clone()]), hint: None });
        return Ok(Decided::by(known, learned));
    }
    // Where nothing is learned from times, they are nobody's business either: replicas measure different ones.
    let (asked_before, tried) = (tried.is_some(), tried.filter(|_| !basis.seen.is_fixed()));
    let next_by = |grounds: &Grounds, tried: Option<Tried>| {
        let data = Data {
            what,
            ranks: ep.size(),
            n,
            row_bytes: width * size_of::<T>(),
            union: &|m| grounds.curve.entries(m),
            dense_above,
            ranks_per_host: ep.topology().ranks_per_host(),
            by_mpi: may_go_by_mpi(ep, op, T::DTYPE),
            profile: grounds.profile,
            corrections: grounds.corrections,
        };
        let rounds = tried.as_ref().map_or(0, |tried| tried.rounds + 1);
        tried
            .and_then(|tried| settle(&data, tried, &grounds.took, || worth_a_try(&data, op, options, true)))
            .unwrap_or_else(|| Next::begin(worth_a_try(&data, op, options, !basis.seen.is_fixed()), rounds))
    };
    let believed = options.expected_nnz.filter(|_| !asked_before && basis.seen.starts_alike());
    let by_hint = believed.and_then(|entries| {
        let grounds = Grounds::hinted(ep, n, entries, basis.seen);
        let next = next_by(&grounds, None);
        // Were the hint wrong, arrays of n rows could be far more than there is room for.
        let fits = n.saturating_mul((width * size_of::<T>()) as u64) <= BELIEVED_BYTES;
        (fits || next.choices.iter().all(|choice| !choice.algorithm.is_dense())).then_some((grounds, next))
    });
    let (grounds, Next { choices, took, rounds }) = match by_hint {
        Some(both) => both,
        None => {
            let grounds = Grounds::asked(ep, view, width, n, basis.seen, tried.as_ref()).await?;
            let next = next_by(&grounds, tried);
            (grounds, next)
        }
    };
    check_algorithm(choices[0].algorithm, op, options)?;
    let cut = choices.iter().any(|choice| has_ranges(choice.algorithm));
    let ranges = match (options.split, grounds.survey) {
        _ if !cut => Vec::new(),
        (Split::Quantiles, Some(survey)) => survey.bounds(ep.size()),
        (split, _) => bounds(ep, split, view, width, n, ep.size()).await?,
    };
    let even = bounds(ep, Split::Even, view, width, n, ep.size()).await?;
    let way = |choice: Choice| {
        let (algorithm, degrees) = (choice.algorithm, choice.degrees.clone());
        let bounds = match split_for(algorithm, options.split) {
            _ if !has_ranges(algorithm) => Vec::new(),
            Split::Even => even.clone(),
            _ => ranges.clone(),
        };
        Known { algorithm, degrees, bounds, choice: Some(Arc::new(choice)) }
    };
    let ways: Vec<Known> = choices.into_iter().map(way).collect();
    let known = ways[0].clone();
    let entries = (!grounds.hinted).then(|| grounds.curve.entries(f64::from(ep.size())) as u64);
    let hint = options.expected_nnz.filter(|_| grounds.hinted);
    let next = Tried { here: nothing(ways.len()), ways, took, rounds };
    let learned = Learned { next, hint };
    Ok(Decided { known, learned: Some(learned), entries })
}

/// Refuses a hint that cannot be.
pub(crate) fn check_hint(n: u64, expected_nnz: Option<u64>) -> Result<()> {
    match expected_nnz.filter(|entries| *entries > n) {
        Some(entries) => {
            Err(Error::bad_input(format!("expected_nnz={entries} entries, in an index space of n={n}")))
        }
        None => Ok(()),
    }
}

/// What a choice goes by. The same on all ranks.
struct Grounds {
    /// Entries of unions.
    curve: Union,
    profile: Profile,
    corrections: Corrections,
    /// Seconds that each way took that was tried, the least of this round's calls: of the slowest rank, for a call is done
    /// when its last rank is.
    took: Vec<f64>,
    survey: Option<Survey>,
    hinted: bool,
}

impl Grounds {
    /// Asks all ranks. Cost: ⌈log2 P⌉ α.
    async fn asked<T: Element>(
        ep: &Endpoint,
        view: View<'_, T>,
        width: usize,
        n: u64,
        seen: Observed,
        tried: Option<&Tried>,
    ) -> Result<Grounds> {
        let default = seen.start(ep.size(), ep.node().on_one_host());
        let mut said = seen.words(default);
        let words = said.len();
        said.extend(tried.iter().flat_map(|tried| tried.here.as_flattened()));
        said.resize(words + MOST_WAYS * MOST_TRIES, f64::INFINITY);
        let survey = survey(ep, view, width, n, &said).await?;
        let (profile, corrections) = agreed(default, |k| survey.said(k));
        let call_s = |way: usize, k: usize| largest(survey.said(words + MOST_TRIES * way + k));
        let least = |way| (0..MOST_TRIES).map(|k| call_s(way, k)).fold(f64::INFINITY, f64::min);
        let took = (0..MOST_WAYS).map(least).collect();
        let curve = union_curve(&survey, ep.size());
        Ok(Grounds { curve, profile, corrections, took, survey: Some(survey), hinted: false })
    }

    /// Believes that the result has so many entries, drawn evenly, without asking anybody.
    fn hinted(ep: &Endpoint, n: u64, entries: u64, seen: Observed) -> Grounds {
        let curve = Union::drawn_evenly(n, entries as f64, ep.size());
        let profile = seen.start(ep.size(), ep.node().on_one_host());
        let corrections = Corrections::default();
        Grounds { curve, profile, corrections, took: Vec::new(), survey: None, hinted: true }
    }
}

/// How the next calls are done: by each of `choices` in turn. The rest is as in [`Tried`].
struct Next {
    choices: Vec<Choice>,
    took: Vec<f64>,
    rounds: u32,
}

impl Next {
    fn begin(choices: Vec<Choice>, rounds: u32) -> Next {
        Next { took: vec![f64::INFINITY; choices.len()], choices, rounds }
    }
}

/// What comes after tries: the best are tried again unless one was clearly better, and in the end all ranks settle on the
/// one that took the least time, and stay with it whatever later calls take: another way adds in another order. `None` where
/// there is nothing to go by, or what was chosen unseen is to be chosen by what calls have shown since. `now`: what the last
/// round took the slowest rank. `anew`: what would be tried if nothing had been.
fn settle(data: &Data<'_>, tried: Tried, now: &[f64], anew: impl FnOnce() -> Vec<Choice>) -> Option<Next> {
    let Tried { ways, took, rounds, .. } = tried;
    let took: Vec<f64> = took.iter().zip(now).map(|(before, now)| before.min(*now)).collect();
    let mut order: Vec<usize> = (0..ways.len()).collect();
    order.sort_by(|a, b| took[*a].total_cmp(&took[*b]));
    if ways.len() == 1 && rounds == 0 {
        return None;
    }
    let best_s = took[*order.first()?];
    if ways.len() > 1 && !best_s.is_finite() {
        return None;
    }
    let close = order.iter().take_while(|way| took[**way] <= WORTH_ANOTHER_TRY * best_s).count();
    let more_rounds = ways.len() > 1 && rounds + 1 < ROUNDS[usize::from(!is_short(best_s))];
    let left = if more_rounds { close.min(AGAIN) } else { 1 };
    let before = ways[order[0]].choice.as_ref();
    let said = |way: &usize| (ways[*way].algorithm, ways[*way].degrees.clone(), took[*way]);
    let out = before.map_or(&[][..], |choice| &choice.tried).iter().cloned();
    let out: Vec<_> = out.chain(order[left..].iter().map(said)).collect();
    let again = |way: &usize| {
        let known = &ways[*way];
        let others = known.choice.iter().flat_map(|choice| &choice.others);
        let others = others.map(|(a, d, _)| (*a, d.clone(), predict(data, *a, d).seconds())).collect();
        Choice { tried: out.clone(), others, ..predict(data, known.algorithm, &known.degrees) }
    };
    let mut choices: Vec<Choice> = order[..left].iter().map(again).collect();
    let mut took: Vec<f64> = order[..left].iter().map(|way| took[*way]).collect();
    let rate = before.map_or(data.profile.rate, |choice| choice.profile.rate);
    let is_another_link = (rate / data.profile.rate).ln().abs() > ANOTHER_LINK.ln();
    if more_rounds && rounds == 0 && is_another_link {
        // What was thought to be slow may be fast.
        let is_new = |one: &Choice| {
            ways.iter().all(|way| way.algorithm != one.algorithm || way.degrees != one.degrees)
        };
        let better = anew().into_iter().filter(|one| is_new(one) && one.seconds() < best_s);
        choices.extend(better.take(MOST_WAYS - left).map(|one| Choice { tried: out.clone(), ..one }));
        took.resize(choices.len(), f64::INFINITY);
    }
    Some(Next { choices, took, rounds: rounds + 1 })
}

/// The algorithm that should be best, and, if `more`, those that are worth a try beside it, for what is asked.
fn worth_a_try(data: &Data<'_>, op: &ReduceOp, options: &AllreduceOptions, more: bool) -> Vec<Choice> {
    let all = ranked(data);
    let others: Vec<_> = all.iter().map(|one| (one.algorithm, one.degrees.clone(), one.seconds())).collect();
    let able = |algorithm: Algorithm| match op {
        ReduceOp::MeanPresent => Algorithm::SplitAllgather,
        _ => options.quantize.map_or(algorithm, |q| q.or_one_that_can(algorithm)),
    };
    let mut chosen: Vec<Choice> = Vec::new();
    for mut choice in all {
        let can = able(choice.algorithm);
        match &options.degrees {
            Some(layers) if can == Algorithm::Butterfly => choice = predict(data, can, layers),
            _ if can != choice.algorithm => choice = predict(data, can, &[data.ranks]),
            _ => {}
        }
        let worth = |best: &Choice| {
            let times =
                WORTH_A_TRY.into_iter().find(|(below, _)| best.seconds() < *below).map_or(1.0, |(_, t)| t);
            more && choice.seconds() <= times * best.seconds()
        };
        if chosen.first().is_none_or(worth) && chosen.iter().all(|one| kind(one) != kind(&choice)) {
            chosen.push(choice);
        }
        if chosen.len() == MOST_WAYS || !more {
            break;
        }
    }
    for choice in &mut chosen {
        let rest = others
            .iter()
            .filter(|(algorithm, degrees, _)| *algorithm != choice.algorithm || *degrees != choice.degrees);
        choice.others = rest.take(OTHERS).cloned().collect();
    }
    chosen
}

/// One of each kind is tried. Of those for arrays the ring, which copies least, and one of few rounds.
fn kind(choice: &Choice) -> (Algorithm, bool) {
    let algorithm = match choice.algorithm {
        Algorithm::DenseRabenseifner => Algorithm::Dense,
        other => other,
    };
    (algorithm, choice.degrees.len() > 1)
}

/// Whether each rank reduces a range.
fn has_ranges(algorithm: Algorithm) -> bool {
    !matches!(algorithm, Algorithm::RecursiveDoubling | Algorithm::Allgather) && !algorithm.is_dense()
}

/// Dense parts are as large as their ranges, whatever is in them.
fn split_for(algorithm: Algorithm, split: Split) -> Split {
    if algorithm == Algorithm::SplitAllgatherDense { Split::Even } else { split }
}

/// Entries of unions as a survey says, at powers of two and at all ranks.
fn union_curve(survey: &Survey, ranks: u32) -> Union {
    let powers = (0..=ranks.ilog2()).map(|k| 1u32 << k).chain(Some(ranks).filter(|p| !p.is_power_of_two()));
    Union::Measured(powers.map(|m| (f64::from(m), survey.union(m))).collect())
}

/// Refuses layers of an algorithm that has none.
fn check_layers(options: &AllreduceOptions) -> Result<()> {
    match options.algorithm {
        Algorithm::Butterfly => Ok(()),
        _ if options.degrees.is_none() => Ok(()),
        other => Err(Error::bad_input(format!(
            "degrees= are the layers of algorithm=\"butterfly\"; {:?} has none",
            other.name()
        ))),
    }
}

/// Refuses an algorithm that cannot do what is asked.
pub(crate) fn check_algorithm(algorithm: Algorithm, op: &ReduceOp, options: &AllreduceOptions) -> Result<()> {
    if matches!(op, ReduceOp::MeanPresent) {
        let one_layer = options.degrees.as_ref().is_none_or(|degrees| degrees.len() == 1);
        match algorithm {
            Algorithm::SplitAllgather | Algorithm::Allgather => {}
            Algorithm::Butterfly if one_layer => {}
            other => {
                return Err(Error::bad_input(format!(
                    "op=\"mean_present\" counts the ranks that had an entry, which algorithm={:?} loses on the way: use \
                     split_allgather or allgather",
                    other.name()
                )));
            }
        }
    }
    options.quantize.map_or(Ok(()), |q| q.check_algorithm(algorithm))
}
