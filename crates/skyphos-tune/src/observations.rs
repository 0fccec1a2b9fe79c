//! Observations from timed calls: the link's rate and latency, and the share of a core that a rank has.
//!
//! Each rank measures its own; a survey exchanges the numbers, and all ranks use the medians.

use crate::algorithm::Algorithm;
use crate::choice::Choice;
use crate::corrections::{CorrectionHistory, Corrections, Recent};
use crate::numbers::{largest, median};
use crate::parameters::TuningParameters;
use skyphos_plan::Profile;
use skyphos_types::{Bytes, Seconds};

/// Number of small calls that are remembered.
const SMALL_CALLS: usize = TuningParameters::DEFAULT.small_calls;

/// Numbers of a survey that describe a rank's profile.
pub const PROFILE_WORDS: usize = 3 + SMALL_CALLS;

/// Numbers of a survey that describe a rank's profile and its corrections.
pub(crate) const WORDS: usize = PROFILE_WORDS + 2 * Algorithm::ALL.len();

/// The duration of one blocking call on this rank.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// From begin to end.
    pub duration: Seconds,
    /// Time in which the caller's thread ran, or was ready to run and waited for a processor; `None`: not measured.
    pub busy: Option<Seconds>,
}

/// Observations from a small call: seconds until a message arrives, and seconds above the prediction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct SmallCall {
    latency_s: f64,
    call_s: f64,
}

/// The measurements of one rank; 0 where there is none yet.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Observations {
    /// The profile that a probe measured, instead of defaults. The same on all ranks.
    pub base: Option<Profile>,
    /// Whether the tuner ignores timings. The same on all ranks.
    pub fixed: bool,
    /// Cores of a host, where all ranks use the same number.
    pub host_cores: Option<f64>,
    /// Bytes a second of the recent calls that were limited by the link.
    rates: Recent<f64>,
    /// The highest rate of the other calls, a lower bound on the link's rate.
    least_link_rate: f64,
    /// Share of a core, for a rank that computes as fast as predicted.
    cores: f64,
    small_calls: [SmallCall; SMALL_CALLS],
    corrections: CorrectionHistory,
    /// Algorithms that have run a large call.
    warm: [bool; Algorithm::ALL.len()],
    /// Calls so far, and small ones among them.
    calls: u32,
    small: u32,
}

impl Observations {
    /// Observations of a new group, with the settings of its parent and no measurements.
    pub fn of_child(parent: Observations) -> Observations {
        let Observations { base, fixed, host_cores, .. } = parent;
        Observations { base, fixed, host_cores, ..Observations::default() }
    }

    /// This rank's words in a survey: its profile as far as ranks may differ in it, and its corrections.
    pub(crate) fn words(&self, parameters: &TuningParameters, default: Profile) -> Vec<f64> {
        let mut words = Vec::with_capacity(WORDS + parameters.max_variants * parameters.short_call_trials);
        words.extend(self.profile_words(default));
        words.extend(self.corrections.words(parameters));
        words
    }

    /// The words of its profile.
    pub fn profile_words(&self, default: Profile) -> [f64; PROFILE_WORDS] {
        // Ranks that share processors wait for each other, which reveals nothing about links or their own work. There only
        // corrections of algorithms are learned.
        let shared = default.call_s > 0.0;
        let known = |measured: f64, otherwise: f64| {
            if measured > 0.0 && !shared { measured } else { otherwise }
        };
        let wait_s = if shared { default.call_s } else { default.latency_s };
        let numbers = [known(self.rate(), default.rate), known(self.cores, default.cores), wait_s];
        let waits = self.small_calls.map(|call| if shared { call.call_s } else { call.latency_s });
        std::array::from_fn(|k| numbers.get(k).copied().unwrap_or_else(|| waits[k - numbers.len()]))
    }

    /// The profile before any call was observed. `own_cores`: the cores of this machine, called only where the ranks have not
    /// agreed on a number; then cores, and so latency, may differ between ranks of one host. All else is the same on all ranks.
    pub fn start(&self, ranks: u32, one_host: bool, own_cores: impl FnOnce() -> f64) -> Profile {
        self.base.unwrap_or_else(|| match one_host {
            true => Profile::one_host(ranks, self.host_cores.unwrap_or_else(own_cores)),
            false => Profile::network(TuningParameters::DEFAULT.default_rate),
        })
    }

    /// Whether all ranks start with the same profile, so that what follows from it needs no agreement.
    pub fn has_common_start(&self) -> bool {
        self.base.is_some() || self.host_cores.is_some()
    }

    /// Whether a rank may measure its own kernels: no profile was given, and timings count.
    pub fn measures_kernels(&self) -> bool {
        self.base.is_none() && !self.fixed
    }

    /// Learns from a call and from its prediction.
    pub fn record(
        &mut self,
        parameters: &TuningParameters,
        timing: &Timing,
        moved: Bytes,
        choice: Option<&Choice>,
    ) {
        if self.fixed {
            return;
        }
        let Timing { duration, busy } = *timing;
        self.calls += 1;
        if self.calls == 1 {
            return; // The first call makes buffers and wakes all threads.
        }
        if moved < parameters.small_call {
            self.record_small(duration, choice);
            return;
        }
        self.record_rate(parameters, timing, moved, choice);
        // The first large call of an algorithm makes buffers and finds connections cold.
        let is_warm = |one: &&Choice| std::mem::replace(&mut self.warm[one.algorithm as usize], true);
        let Some(choice) = choice.filter(is_warm) else { return };
        let (work, predicted) = (choice.prediction.work(), choice.prediction.duration());
        let computes = work > Seconds(0.0) && moved >= parameters.large_call;
        if let Some(busy) = busy.filter(|_| computes) {
            let now = work / busy;
            self.cores = match self.cores > 0.0 {
                true => self.cores + parameters.newest_weight * (now - self.cores),
                false => now,
            };
        }
        // If the link's rate was wrong, the measured rate already corrects the prediction.
        let profile = &choice.profile;
        let bytes = moved.0 as f64;
        let rate_error_s = match profile.call_s > 0.0 || self.rate() == 0.0 {
            true => Seconds(0.0),
            false => Seconds((bytes / profile.rate - bytes / self.rate()).abs()),
        };
        if predicted > Seconds(0.0) && rate_error_s < parameters.minor_fraction * duration {
            self.corrections.push(choice.algorithm, predicted, duration);
        }
    }

    fn record_small(&mut self, Seconds(seconds): Seconds, choice: Option<&Choice>) {
        let Some(prediction) = choice.map(|one| &one.prediction).filter(|one| one.rounds() > 0.0) else {
            return;
        };
        let call_s = seconds - (prediction.duration().0 - prediction.call_s);
        let call = SmallCall { latency_s: seconds / prediction.rounds(), call_s: call_s.max(0.1 * seconds) };
        self.small_calls[self.small as usize % SMALL_CALLS] = call;
        self.small = self.small.wrapping_add(1);
    }

    fn record_rate(
        &mut self,
        parameters: &TuningParameters,
        timing: &Timing,
        moved: Bytes,
        choice: Option<&Choice>,
    ) {
        let Timing { duration, busy } = *timing;
        let rate = moved / duration;
        // A call that was limited by a processor gives only a lower bound on the link's rate.
        let limited_by_link = busy.is_some_and(|busy| busy < parameters.busy_fraction * duration);
        let latency_and_work = choice.map_or(Seconds::INFINITE, Choice::latency_and_work);
        let large = moved >= parameters.large_call;
        let mostly_bytes =
            moved >= parameters.medium_call && latency_and_work < parameters.minor_fraction * duration;
        if limited_by_link && (large || mostly_bytes) {
            self.rates.push(rate);
        } else if large {
            self.least_link_rate = self.least_link_rate.max(rate);
        }
    }

    /// Bytes a second of the link; 0 before a measurement.
    fn rate(&self) -> f64 {
        self.rates.median().max(self.least_link_rate)
    }
}

/// The profile that all ranks use: their measurements, and `default` in all other fields. `gathered(k)`: word k of all ranks'
/// [`Observations::profile_words`].
///
/// Rate and cores change slowly, so their medians count. A call is complete when its last rank is, so of each small call
/// the slowest rank's time counts, and of these the median.
pub fn agreed_profile(default: Profile, gathered: impl Fn(usize) -> Vec<f64>) -> Profile {
    let slowest = |call: usize| largest(gathered(PROFILE_WORDS - SMALL_CALLS + call));
    let measured: Vec<f64> = (0..SMALL_CALLS).map(slowest).filter(|s| *s > 0.0).collect();
    let wait_s = if measured.is_empty() { median(gathered(2)) } else { median(measured) };
    let profile = Profile { rate: median(gathered(0)), cores: median(gathered(1)), ..default };
    match default.call_s > 0.0 {
        true => Profile { call_s: wait_s, ..profile },
        false => Profile { latency_s: wait_s, ..profile },
    }
}

/// Like [`agreed_profile`], with the corrections of algorithms, from [`Observations::words`].
pub(crate) fn agreed(default: Profile, gathered: impl Fn(usize) -> Vec<f64>) -> (Profile, Corrections) {
    (agreed_profile(default, &gathered), Corrections::agreed(|k| gathered(PROFILE_WORDS + k)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choice::tests::{even, workload};

    const PARAMETERS: TuningParameters = TuningParameters::DEFAULT;

    fn network() -> Profile {
        Profile::network(118e6)
    }

    /// The profile after these calls, as a group of three such ranks agrees on it; and the factor of a ring.
    fn after(default: Profile, calls: &[(f64, f64, u64)], choice: Option<&Choice>) -> (Profile, f64) {
        let mut seen = Observations::default();
        for (seconds, busy_s, bytes) in calls {
            let busy = Some(Seconds(*busy_s)).filter(|busy| busy.0 > 0.0);
            let timing = Timing { duration: Seconds(*seconds), busy };
            seen.record(&PARAMETERS, &timing, Bytes(*bytes), choice);
        }
        let words = seen.words(&PARAMETERS, default);
        assert_eq!(words.len(), WORDS);
        let (profile, corrections) = agreed(default, |k| vec![words[k]; 3]);
        let ring_s = choice.map_or(0.0, |choice| choice.prediction.duration().0);
        (profile, corrections.factor(&PARAMETERS, Algorithm::Ring, Seconds(ring_s)))
    }

    #[test]
    fn calls_reveal_the_rate() {
        const MB: u64 = 1_000_000;
        type Calls<'a> = &'a [(f64, f64, u64)];
        let table: &[(&str, Calls<'_>, f64)] = &[
            ("no call", &[], 118e6),
            ("the first call makes buffers", &[(0.1, 0.01, MB)], 118e6),
            ("a large call that waits for the link", &[(1.0, 0.1, MB), (0.1, 0.01, MB)], 10e6),
            ("the median of three", &[(1.0, 0.1, MB), (0.1, 0.01, MB), (0.2, 0.01, MB), (1.0, 0.1, MB)], 5e6),
            (
                "a busy processor gives a lower bound",
                &[(1.0, 0.1, MB), (0.1, 0.09, MB), (0.2, 0.18, MB)],
                10e6,
            ),
            ("an unmeasured processor likewise", &[(1.0, 0.1, MB), (0.1, 0.0, MB)], 10e6),
            ("a medium call without prediction", &[(1.0, 0.1, MB), (0.1, 0.01, 100_000)], 118e6),
            ("a small call", &[(1.0, 0.1, MB), (0.1, 0.01, 1000)], 118e6),
        ];
        for (name, calls, rate) in table {
            assert_eq!(after(network(), calls, None).0, Profile { rate: *rate, ..network() }, "{name}");
        }
        // Ranks that share processors learn no rate.
        let shared = Profile::one_host(8, 2.0);
        assert_eq!(after(shared, &[(1.0, 0.1, MB), (0.1, 0.01, MB)], None).0, shared);
    }

    #[test]
    fn calls_reveal_latency_cores_and_corrections() {
        let (small, large) = (even(1 << 24, 1e-6), even(1 << 24, 0.01));
        let double = workload(8, &small, network()).predict(Algorithm::RecursiveDoubling, &[]);
        let rounds = double.prediction.rounds();
        // The first call and the four after it.
        let calls = [0.5, 0.3, 0.6, 0.9, 0.6].map(|seconds| (seconds, 0.0, 1000));
        let found = after(network(), &calls, Some(&double)).0;
        assert!((found.latency_s * rounds - 0.6).abs() < 1e-9, "{found:?}");
        assert_eq!(Profile { latency_s: network().latency_s, ..found }, network());

        let ring = workload(8, &large, network()).predict(Algorithm::Ring, &[]);
        let (predicted_s, work_s) = (ring.prediction.duration().0, ring.prediction.work().0);
        // Twice as long as predicted on a link of the predicted rate: the third call is the first warm one.
        let bytes = (2.0 * predicted_s * network().rate) as u64;
        let call = (2.0 * predicted_s, work_s / 0.5, bytes);
        for (calls, factor, cores) in [(1, 1.0, 1.0), (2, 1.0, 1.0), (3, 2.0, 0.5), (5, 2.0, 0.5)] {
            let (profile, found) = after(network(), &vec![call; calls], Some(&ring));
            assert!((found - factor).abs() < 1e-6, "{calls} calls: {found}");
            assert!((profile.cores - cores).abs() < 1e-6, "{calls} calls: {profile:?}");
        }
        // A link of a tenth of the rate: the rate is learned, and no correction factor.
        let slow = (10.0 * predicted_s, work_s, (predicted_s * network().rate) as u64);
        let (profile, found) = after(network(), &[slow; 5], Some(&ring));
        assert!((profile.rate / 11.8e6 - 1.0).abs() < 0.01 && found == 1.0, "{profile:?} {found}");
    }

    #[test]
    fn fixed_groups_record_nothing_and_children_start_empty() {
        let fixed = Observations { fixed: true, host_cores: Some(4.0), ..Observations::default() };
        let timing = Timing { duration: Seconds(0.1), busy: Some(Seconds(0.01)) };
        let mut seen = fixed;
        for _ in 0..3 {
            seen.record(&PARAMETERS, &timing, Bytes(1 << 20), None);
        }
        assert_eq!(seen, fixed);
        let mut parent = Observations { fixed: false, ..fixed };
        for _ in 0..3 {
            parent.record(&PARAMETERS, &timing, Bytes(1 << 20), None);
        }
        assert_ne!(parent, Observations { fixed: false, ..fixed });
        assert_eq!(Observations::of_child(parent), Observations { fixed: false, ..fixed });
    }

    #[test]
    fn groups_start_with_profile_or_defaults() {
        let not_called = || panic!("the ranks have agreed");
        let none = Observations::default();
        let agreed = Observations { host_cores: Some(4.0), ..none };
        let probed = Observations { base: Some(Profile::network(1e9)), ..none };
        assert_eq!(none.start(4, true, || 2.0), Profile::one_host(4, 2.0));
        assert_eq!(agreed.start(4, true, not_called), Profile::one_host(4, 4.0));
        assert_eq!(none.start(4, false, not_called), network());
        assert_eq!(probed.start(4, true, not_called), Profile::network(1e9));
        for (one, common, measures) in [(none, false, true), (agreed, true, true), (probed, true, false)] {
            assert_eq!((one.has_common_start(), one.measures_kernels()), (common, measures));
        }
    }
}
