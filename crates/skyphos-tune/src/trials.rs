//! Trials: calls of a kind run each of several variants in turn, until one is chosen by its measured time.
//!
//! A survey begins a round: [`Facts::agreed`] reads the ranks' measurements, and [`next_round`] picks the variants of the next
//! calls. The first round has the variants that are predicted to take about as long as the best. Each further round has the
//! fastest of them. After the last round the variant with the least time stays for good, since another variant would add values in
//! another order.

use crate::algorithm::Algorithm;
use crate::choice::{Choice, TimedAlgorithm, Workload};
use crate::corrections::Corrections;
use crate::numbers::largest;
use crate::observations::{Observations, WORDS, agreed};
use crate::parameters::TuningParameters;
use skyphos_plan::{Profile, Union};
use skyphos_types::Seconds;
use std::sync::Arc;

/// A variant of a call: algorithm, layers and ranges.
#[derive(Clone, Debug, PartialEq)]
pub struct Variant {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Layers of a butterfly; empty where the algorithm or the caller determines them.
    pub degrees: Vec<u32>,
    /// Bounds of the ranks' ranges; empty if the algorithm has none.
    pub bounds: Vec<u64>,
    /// Its prediction, where `auto` chose.
    pub choice: Option<Arc<Choice>>,
}

/// A round of trials, with the durations of calls so far.
#[derive(Clone, Debug, PartialEq)]
pub struct Trials {
    /// The variants, beginning with the expected fastest.
    pub variants: Vec<Variant>,
    /// Durations of this rank's calls in this round, `short_call_trials` of each variant; infinite without a call.
    pub local: Vec<Seconds>,
    /// Duration of each variant's fastest call in earlier rounds, on the slowest rank; infinite without a call.
    pub slowest: Vec<Seconds>,
    /// Number of earlier rounds.
    pub rounds: u32,
}

impl Trials {
    /// The first round of these variants.
    pub fn begin(parameters: &TuningParameters, variants: Vec<Variant>) -> Trials {
        let slowest = vec![Seconds::INFINITE; variants.len()];
        Trials::of(parameters, variants, slowest, 0)
    }

    fn of(
        parameters: &TuningParameters,
        variants: Vec<Variant>,
        slowest: Vec<Seconds>,
        rounds: u32,
    ) -> Trials {
        let local = vec![Seconds::INFINITE; variants.len() * parameters.short_call_trials];
        Trials { variants, local, slowest, rounds }
    }

    /// Calls by each variant in this round.
    pub(crate) fn calls_each(&self, parameters: &TuningParameters) -> u32 {
        let expected = self.variants[0].choice.as_ref().map_or(Seconds(0.0), |choice| choice.duration());
        let measured = self.slowest.iter().copied().fold(Seconds::INFINITE, Seconds::min);
        let duration = if measured.is_finite() { measured } else { expected };
        if parameters.is_short(duration) { parameters.short_call_trials as u32 } else { 1 }
    }

    /// Records call `call` of this round.
    pub(crate) fn record(&mut self, parameters: &TuningParameters, call: usize, duration: Seconds) {
        let (variant, turn) = (call % self.variants.len(), call / self.variants.len());
        // A single variant has more calls than places.
        let each = parameters.short_call_trials;
        let place = &mut self.local[each * variant + turn.min(each - 1)];
        *place = place.min(duration);
    }
}

/// The caller's limits on a choice.
pub struct Limits<'a> {
    /// Layers of a butterfly, if the caller names them.
    pub degrees: Option<&'a [u32]>,
    /// The algorithm itself where it supports the caller's options, else its substitute.
    pub substitute: &'a (dyn Fn(Algorithm) -> Algorithm + Sync),
}

/// The input of a choice. The same on all ranks.
pub struct Facts {
    /// Entries of unions.
    pub union: Union,
    /// Numbers of machine and network.
    pub profile: Profile,
    /// Ratios of measured to predicted durations.
    pub corrections: Corrections,
    /// Duration of each variant's fastest call in the round that ended, on its slowest rank; infinite without a call.
    pub round: Vec<Seconds>,
}

impl Facts {
    /// This rank's words in a survey.
    pub fn words(
        parameters: &TuningParameters,
        observations: &Observations,
        default: Profile,
        trials: Option<&Trials>,
    ) -> Vec<f64> {
        let mut words = observations.words(parameters, default);
        words.extend(trials.iter().flat_map(|trials| &trials.local).map(|one| one.0));
        words.resize(WORDS + parameters.max_variants * parameters.short_call_trials, f64::INFINITY);
        words
    }

    /// The facts that follow from all ranks' words. `gathered(k)`: word k of all ranks' [`Facts::words`].
    pub fn agreed(
        parameters: &TuningParameters,
        union: Union,
        default: Profile,
        gathered: impl Fn(usize) -> Vec<f64>,
    ) -> Facts {
        let (profile, corrections) = agreed(default, &gathered);
        let each = parameters.short_call_trials;
        let slowest = |variant: usize, turn: usize| largest(gathered(WORDS + each * variant + turn));
        let fastest = |variant| {
            let calls = (0..each).map(|turn| Seconds(slowest(variant, turn)));
            calls.fold(Seconds::INFINITE, Seconds::min)
        };
        let round = (0..parameters.max_variants).map(fastest).collect();
        Facts { union, profile, corrections, round }
    }

    /// The facts that follow from a hint alone: `entries` of the result, drawn evenly from n.
    pub fn hinted(n: u64, entries: u64, ranks: u32, profile: Profile) -> Facts {
        let union = Union::drawn_evenly(n, entries as f64, ranks);
        Facts { union, profile, corrections: Corrections::default(), round: Vec::new() }
    }
}

/// The next round of trials: its choices, and their durations in earlier rounds.
#[derive(Clone, Debug, PartialEq)]
pub struct NextRound {
    /// The variants' choices; a single one is final.
    pub choices: Vec<Choice>,
    slowest: Vec<Seconds>,
    rounds: u32,
}

impl NextRound {
    /// Its trials, with the bounds of each variant's ranges.
    pub fn into_trials(
        self,
        parameters: &TuningParameters,
        bounds: impl Fn(Algorithm) -> Vec<u64>,
    ) -> Trials {
        let variant = |choice: Choice| Variant {
            algorithm: choice.algorithm,
            degrees: choice.degrees.clone(),
            bounds: bounds(choice.algorithm),
            choice: Some(Arc::new(choice)),
        };
        let variants = self.choices.into_iter().map(variant).collect();
        Trials::of(parameters, variants, self.slowest, self.rounds)
    }
}

/// Picks the variants of the next calls. `trials` is the round that ended (`None`: there was none) and `round` its durations.
/// `adapts`: timings count; else the best prediction is final.
pub fn next_round(
    workload: &Workload<'_>,
    limits: &Limits<'_>,
    trials: Option<Trials>,
    round: &[Seconds],
    adapts: bool,
) -> NextRound {
    let rounds = trials.as_ref().map_or(0, |trials| trials.rounds + 1);
    trials.and_then(|trials| narrow(workload, limits, trials, round)).unwrap_or_else(|| {
        let choices = candidates(workload, limits, adapts);
        NextRound { slowest: vec![Seconds::INFINITE; choices.len()], choices, rounds }
    })
}

/// Keeps the fastest variants of a round: a few until the last round, then one. `None` where nothing was measured, or where a
/// variant was chosen without trials and may now be compared with others.
fn narrow(
    workload: &Workload<'_>,
    limits: &Limits<'_>,
    trials: Trials,
    round: &[Seconds],
) -> Option<NextRound> {
    let parameters = workload.parameters;
    let Trials { variants, slowest, rounds, .. } = trials;
    let fastest: Vec<Seconds> = slowest.iter().zip(round).map(|(before, now)| before.min(*now)).collect();
    let mut order: Vec<usize> = (0..variants.len()).collect();
    order.sort_by(|a, b| fastest[*a].total_cmp(&fastest[*b]));
    let several = variants.len() > 1;
    if !several && rounds == 0 {
        return None;
    }
    let best = fastest[*order.first()?];
    if several && !best.is_finite() {
        return None;
    }
    let continues = several && rounds + 1 < parameters.rounds(best);
    let close = order.iter().take_while(|k| fastest[**k] <= parameters.retry_factor * best).count();
    let left = if continues { close.min(parameters.max_retries) } else { 1 };
    let before = variants[order[0]].choice.as_ref();
    let dropped = order[left..].iter().map(|k| TimedAlgorithm {
        algorithm: variants[*k].algorithm,
        degrees: variants[*k].degrees.clone(),
        duration: fastest[*k],
    });
    let tried: Vec<_> =
        before.map_or(&[][..], |choice| &choice.tried).iter().cloned().chain(dropped).collect();
    let again = |k: &usize| {
        let variant = &variants[*k];
        let others = variant.choice.iter().flat_map(|choice| &choice.others);
        let predicted = |one: &TimedAlgorithm| {
            let duration = workload.predict(one.algorithm, &one.degrees).duration();
            TimedAlgorithm { duration, ..one.clone() }
        };
        let others = others.map(predicted).collect();
        let choice = workload.predict(variant.algorithm, &variant.degrees);
        Choice { tried: tried.clone(), others, ..choice }
    };
    let mut choices: Vec<Choice> = order[..left].iter().map(again).collect();
    let mut slowest: Vec<Seconds> = order[..left].iter().map(|k| fastest[*k]).collect();
    let rate = before.map_or(workload.profile.rate, |choice| choice.profile.rate);
    let rate_was_wrong = (rate / workload.profile.rate).ln().abs() > parameters.link_factor.ln();
    if continues && rounds == 0 && rate_was_wrong {
        // The first predictions assumed another rate, so an algorithm that was predicted to be slow may be fast.
        let is_new = |one: &Choice| {
            variants.iter().all(|known| known.algorithm != one.algorithm || known.degrees != one.degrees)
        };
        let faster =
            candidates(workload, limits, true).into_iter().filter(|one| is_new(one) && one.duration() < best);
        let places = parameters.max_variants - left;
        choices.extend(faster.take(places).map(|one| Choice { tried: tried.clone(), ..one }));
        slowest.resize(choices.len(), Seconds::INFINITE);
    }
    Some(NextRound { choices, slowest, rounds: rounds + 1 })
}

/// The algorithm with the least predicted time, and, if `several`, those that are predicted to take about as long.
fn candidates(workload: &Workload<'_>, limits: &Limits<'_>, several: bool) -> Vec<Choice> {
    let parameters = workload.parameters;
    let all = workload.ranked();
    let others: Vec<_> = all.iter().map(|one| one.timed(one.duration())).collect();
    let mut chosen: Vec<Choice> = Vec::new();
    for mut choice in all {
        let algorithm = (limits.substitute)(choice.algorithm);
        match limits.degrees {
            Some(degrees) if algorithm == Algorithm::Butterfly => {
                choice = workload.predict(algorithm, degrees);
            }
            _ if algorithm != choice.algorithm => choice = workload.predict(algorithm, &[workload.ranks]),
            _ => {}
        }
        let close = |best: &Choice| {
            several && choice.duration() <= parameters.trial_factor(best.duration()) * best.duration()
        };
        if chosen.first().is_none_or(close) && chosen.iter().all(|one| kind(one) != kind(&choice)) {
            chosen.push(choice);
        }
        if chosen.len() == parameters.max_variants || !several {
            break;
        }
    }
    for choice in &mut chosen {
        let rest = others
            .iter()
            .filter(|other| other.algorithm != choice.algorithm || other.degrees != choice.degrees);
        choice.others = rest.take(parameters.max_alternatives).cloned().collect();
    }
    chosen
}

/// The kind of an algorithm; a round tries one algorithm of each kind. Dense algorithms have two kinds: the ring, which copies
/// least, and algorithms with few rounds.
fn kind(choice: &Choice) -> (Algorithm, bool) {
    let algorithm = match choice.algorithm {
        Algorithm::DenseRabenseifner => Algorithm::Dense,
        other => other,
    };
    (algorithm, choice.degrees.len() > 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choice::tests::{even, workload};
    use Algorithm::{Allgather, Butterfly, DenseRing, RecursiveDoubling, Ring, SplitAllgather};

    const PARAMETERS: TuningParameters = TuningParameters::DEFAULT;

    fn limits<'a>() -> Limits<'a> {
        Limits { degrees: None, substitute: &|algorithm| algorithm }
    }

    fn trials(workload: &Workload<'_>, variants: &[(Algorithm, f64)], rounds: u32) -> Trials {
        let variant = |(algorithm, _): &(Algorithm, f64)| {
            let choice = Arc::new(workload.predict(*algorithm, &[8]));
            Variant {
                algorithm: *algorithm,
                degrees: choice.degrees.clone(),
                bounds: vec![],
                choice: Some(choice),
            }
        };
        let slowest = variants.iter().map(|(_, ms)| Seconds(ms * 1e-3)).collect();
        Trials::of(&PARAMETERS, variants.iter().map(variant).collect(), slowest, rounds)
    }

    /// From (variants with ms of earlier rounds, rounds before, ms of this round) to (variants, ms, rounds).
    #[test]
    fn rounds_narrow_the_variants() {
        const UNTRIED: f64 = f64::INFINITY;
        type Ms<'a> = &'a [(Algorithm, f64)];
        type Row<'a> = (&'a str, Ms<'a>, u32, &'a [f64], Ms<'a>, u32);
        let table: &[Row<'_>] = &[
            (
                "the two fastest are tried again",
                &[(Ring, UNTRIED), (Butterfly, UNTRIED), (Allgather, UNTRIED)],
                0,
                &[5.0, 4.0, 4.5],
                &[(Butterfly, 4.0), (Allgather, 4.5)],
                1,
            ),
            (
                "a slow variant is dropped",
                &[(Ring, UNTRIED), (Butterfly, UNTRIED)],
                0,
                &[4.0, 5.1],
                &[(Ring, 4.0)],
                1,
            ),
            (
                "a variant at the limit is kept",
                &[(Ring, UNTRIED), (Butterfly, UNTRIED)],
                0,
                &[4.0, 5.0],
                &[(Ring, 4.0), (Butterfly, 5.0)],
                1,
            ),
            (
                "the fastest call of all rounds counts",
                &[(Ring, 4.0), (Butterfly, 4.2)],
                1,
                &[9.0, 3.9],
                &[(Butterfly, 3.9), (Ring, 4.0)],
                2,
            ),
            (
                "short calls settle after three rounds",
                &[(Ring, 4.0), (Butterfly, 4.2)],
                2,
                &[4.1, 4.1],
                &[(Ring, 4.0)],
                3,
            ),
            (
                "long calls settle after two",
                &[(Ring, 400.0), (Butterfly, 420.0)],
                1,
                &[410.0, 410.0],
                &[(Ring, 400.0)],
                2,
            ),
            ("a settled variant stays", &[(Ring, 4.0)], 3, &[90.0], &[(Ring, 4.0)], 4),
            (
                "a variant that no call reached is dropped",
                &[(Ring, UNTRIED), (Butterfly, UNTRIED)],
                0,
                &[UNTRIED, 4.0],
                &[(Butterfly, 4.0)],
                1,
            ),
        ];
        let union = even(1 << 24, 0.01);
        let workload = workload(8, &union, Profile::network(118e6));
        for (name, variants, rounds, round_ms, want, want_rounds) in table {
            let before = trials(&workload, variants, *rounds);
            let round: Vec<Seconds> = round_ms.iter().map(|ms| Seconds(ms * 1e-3)).collect();
            let next = next_round(&workload, &limits(), Some(before), &round, true);
            let found: Vec<(Algorithm, f64)> = next
                .choices
                .iter()
                .zip(&next.slowest)
                .map(|(choice, s)| (choice.algorithm, (s.0 * 1e6).round() / 1e3))
                .collect();
            assert_eq!((&found[..], next.rounds), (*want, *want_rounds), "{name}");
            // Dropped variants are reported with their times.
            let dropped = variants.len() - want.len();
            assert!(next.choices.iter().all(|choice| choice.tried.len() == dropped), "{name}");
        }
    }

    #[test]
    fn rounds_begin_anew_where_nothing_was_measured() {
        let union = even(1 << 24, 0.01);
        let workload = workload(8, &union, Profile::network(118e6));
        let first = next_round(&workload, &limits(), None, &[], true);
        assert_eq!(first.rounds, 0);
        assert!(first.slowest.iter().all(|s| !s.is_finite()));
        for (name, before, round) in [
            (
                "no call finished",
                trials(&workload, &[(Ring, f64::INFINITY), (Butterfly, f64::INFINITY)], 0),
                vec![Seconds::INFINITE; 4],
            ),
            (
                "a single variant was never compared",
                trials(&workload, &[(Ring, f64::INFINITY)], 0),
                vec![Seconds(1e-3); 4],
            ),
        ] {
            let again = next_round(&workload, &limits(), Some(before), &round, true);
            assert_eq!((&again.choices, again.rounds), (&first.choices, 1), "{name}");
        }
    }

    #[test]
    fn candidates_are_close_and_of_different_kinds() {
        let union = even(1 << 24, 0.01);
        for profile in [Profile::network(118e6), Profile::network(1e6), Profile::one_host(8, 2.0)] {
            let workload = workload(8, &union, profile);
            let all = workload.ranked();
            let best = all[0].duration();
            let next = next_round(&workload, &limits(), None, &[], true);
            assert!(!next.choices.is_empty() && next.choices.len() <= PARAMETERS.max_variants);
            for (k, one) in next.choices.iter().enumerate() {
                assert!(one.duration() <= PARAMETERS.trial_factor(best) * best);
                assert!(next.choices[..k].iter().all(|other| kind(other) != kind(one)));
                assert_eq!(one.others.len(), PARAMETERS.max_alternatives);
                assert!(
                    one.others
                        .iter()
                        .all(|other| (other.algorithm, &other.degrees) != (one.algorithm, &one.degrees))
                );
            }
            let fixed = next_round(&workload, &limits(), None, &[], false);
            assert_eq!(fixed.choices, next.choices[..1], "without trials the best prediction is final");
        }
    }

    #[test]
    fn limits_replace_algorithms_and_degrees() {
        let union = even(1 << 24, 0.01);
        let workload = workload(8, &union, Profile::network(118e6));
        let split = Limits { degrees: None, substitute: &|_| SplitAllgather };
        let next = next_round(&workload, &split, None, &[], true);
        let found: Vec<_> = next.choices.iter().map(|one| (one.algorithm, one.degrees.clone())).collect();
        assert_eq!(found, [(SplitAllgather, vec![8])]);
        let named = Limits { degrees: Some(&[2, 4]), substitute: &|_| Butterfly };
        let next = next_round(&workload, &named, None, &[], true);
        let found: Vec<_> = next.choices.iter().map(|one| (one.algorithm, one.degrees.clone())).collect();
        assert_eq!(found, [(Butterfly, vec![2, 4])]);
    }

    /// Predicted with a fast link, measured on a slow one: algorithms that move fewer bytes are tried as well.
    #[test]
    fn another_rate_brings_new_candidates() {
        let union = even(1 << 24, 0.01);
        let (fast, slow) = (Profile::network(10e9), Profile::network(1e6));
        let before = |rounds| {
            trials(
                &workload(8, &union, fast),
                &[(DenseRing, f64::INFINITY), (RecursiveDoubling, f64::INFINITY)],
                rounds,
            )
        };
        let round = [30.0, 31.0, f64::INFINITY, f64::INFINITY].map(Seconds);
        let slow_link = workload(8, &union, slow);
        let (known, added) = {
            let next = next_round(&slow_link, &limits(), Some(before(0)), &round, true);
            let added = next.choices.iter().skip(2).map(|one| one.algorithm).collect::<Vec<_>>();
            (next.choices[..2].iter().map(|one| one.algorithm).collect::<Vec<_>>(), added)
        };
        assert_eq!(known, [DenseRing, RecursiveDoubling]);
        assert!(!added.is_empty() && !added.contains(&DenseRing), "{added:?}");
        let same_link = workload(8, &union, fast);
        assert_eq!(next_round(&same_link, &limits(), Some(before(0)), &round, true).choices.len(), 2);
    }

    #[test]
    fn words_of_a_round_reach_all_ranks() {
        let union = even(1 << 24, 0.01);
        let default = Profile::network(118e6);
        let workload = workload(8, &union, default);
        let mut ranks: Vec<Trials> = (0..2)
            .map(|_| trials(&workload, &[(Ring, f64::INFINITY), (Butterfly, f64::INFINITY)], 0))
            .collect();
        // Ring 3 and 5 ms on rank 0, 4 and 2 ms on rank 1: the slowest rank took 4 and 5.
        for (rank, seconds) in [[3e-3, 9e-3, 5e-3, 8e-3], [4e-3, 7e-3, 2e-3, 6e-3]].iter().enumerate() {
            seconds
                .iter()
                .enumerate()
                .for_each(|(call, s)| ranks[rank].record(&PARAMETERS, call, Seconds(*s)));
        }
        let seen = Observations::default();
        let words: Vec<Vec<f64>> =
            ranks.iter().map(|one| Facts::words(&PARAMETERS, &seen, default, Some(one))).collect();
        let facts = Facts::agreed(&PARAMETERS, Union::Measured(vec![]), default, |k| {
            words.iter().map(|w| w[k]).collect()
        });
        assert_eq!(facts.round, [4e-3, 8e-3, f64::INFINITY, f64::INFINITY].map(Seconds));
        assert_eq!(facts.profile, default);
        let nothing = Facts::words(&PARAMETERS, &seen, default, None);
        assert_eq!((nothing.len(), nothing[WORDS..].iter().all(|s| s.is_infinite())), (words[0].len(), true));
    }
}
