//! What calls show of machine and network: the rate of the link, and how much of a core a rank has.
//!
//! Each rank sees its own; ranks tell each other with a sample, and all go by the median.

use crate::algorithm::Algorithm;
use crate::choose::Choice;
use crate::corrections::{Calls, Corrections, Last};
use skyphos_core::Traffic;
use skyphos_core::collectives::{largest, median};
use skyphos_plan::Profile;
use std::time::Instant;

/// Calls that move less say nothing about rates, unless nothing but their bytes should take time.
const LARGE_BYTES: u64 = 256 * 1024;
const FAIR_BYTES: u64 = 64 * 1024;

/// The part of a call that may be taken for something else.
const LITTLE: f64 = 0.25;

/// How much the last call counts in what changes slowly.
const FRESH: f64 = 0.3;

/// Calls that move so little take as long as their messages wait for each other.
const SMALL_BYTES: u64 = 16 * 1024;

/// A call whose processor was busy for a larger part of its time was not held back by the link.
const BUSY: f64 = 0.7;

/// Small calls that are remembered.
const TURNS: usize = 8;

/// Numbers that a rank says of its profile.
pub(crate) const PROFILE_WORDS: usize = 3 + TURNS;

/// What a rank has seen so far; 0 where nothing yet.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Observed {
    /// What a probe measured, to begin with instead of defaults. The same on all ranks.
    pub(crate) base: Option<Profile>,
    /// Whether calls are not to be learned from. The same on all ranks.
    pub(crate) fixed: bool,
    /// Cores of a host, where all ranks go by the same number.
    pub(crate) host_cores: Option<f64>,
    /// Bytes a second of the link: of the last calls that waited for it, and the most of those that did not.
    rates: Last<f64>,
    most_rate: f64,
    /// Share of a core, of one that does what is predicted in the time that is predicted.
    cores: f64,
    /// Of the last small calls.
    turns: [Turn; TURNS],
    /// How much longer calls by each algorithm took than was predicted.
    corrections: Calls,
    /// Algorithms by which there was a large call.
    warm: [bool; Algorithm::ALL.len()],
    /// Calls that were looked at, and small ones among them.
    calls: u32,
    small: u32,
}

impl Observed {
    /// Nothing yet, but what a group's parent was told to begin with.
    pub(crate) fn begin_as(parent: Observed) -> Observed {
        let Observed { base, fixed, host_cores, .. } = parent;
        Observed { base, fixed, host_cores, ..Observed::default() }
    }

    /// What this rank says in a survey: its profile as far as ranks may differ in it, and its corrections.
    pub(crate) fn words(self, default: Profile) -> Vec<f64> {
        self.profile_words(default).into_iter().chain(self.corrections.words()).collect()
    }

    /// What of it is the profile's.
    pub(crate) fn profile_words(self, default: Profile) -> [f64; PROFILE_WORDS] {
        // Ranks that share processors wait for each other, which says nothing of links or of their own work: there, only
        // corrections of algorithms say more.
        let shared = default.call_s > 0.0;
        let known = |seen: f64, otherwise: f64| if seen > 0.0 && !shared { seen } else { otherwise };
        let numbers = [known(self.rate(), default.rate), known(self.cores, default.cores), waits(&default)];
        let turns = self.turns.map(|turn| if shared { turn.call_s } else { turn.latency_s });
        std::array::from_fn(|k| numbers.get(k).copied().unwrap_or_else(|| turns[k - numbers.len()]))
    }

    /// What is known before any call has shown more. Ranks of one host may have different numbers of cores, and so
    /// latency, of defaults; all else is the same on all ranks.
    pub(crate) fn start(self, ranks: u32, one_host: bool) -> Profile {
        self.base.unwrap_or_else(|| match one_host {
            true => Profile::one_host(ranks, self.host_cores.unwrap_or_else(own_cores)),
            false => Profile::network(DEFAULT_RATE),
        })
    }

    /// Whether all ranks start with the same, so that what follows from it needs no agreement.
    pub(crate) fn starts_alike(&self) -> bool {
        self.base.is_some() || self.host_cores.is_some()
    }

    /// Whether ranks may go by what they measure of themselves: nobody has told them, and calls are learned from.
    pub(crate) fn measures_itself(&self) -> bool {
        self.base.is_none() && !self.fixed
    }

    /// Whether choices go by data and profile alone.
    pub(crate) fn is_fixed(&self) -> bool {
        self.fixed
    }

    /// Takes note of a call, and of what was predicted for it.
    pub(crate) fn note(&mut self, call: &Seen, traffic: Traffic, choice: Option<&Choice>) {
        if self.fixed {
            return;
        }
        let (Seen { seconds, busy_s }, bytes) = (*call, traffic.sent_bytes.max(traffic.received_bytes));
        let prediction = choice.map(|choice| &choice.prediction);
        self.calls += 1;
        if self.calls == 1 {
            return; // makes buffers, and wakes everything up
        }
        let mix = |before: f64, now: f64| match before > 0.0 {
            true => before + FRESH * (now - before),
            false => now,
        };
        if bytes < SMALL_BYTES
            && let Some(prediction) = prediction.filter(|prediction| prediction.rounds() > 0.0)
        {
            let call_s = seconds - (prediction.seconds() - prediction.call_s);
            let turn = Turn { latency_s: seconds / prediction.rounds(), call_s: call_s.max(0.1 * seconds) };
            self.turns[self.small as usize % TURNS] = turn;
            self.small = self.small.wrapping_add(1);
        }
        if bytes < SMALL_BYTES {
            return;
        }
        let rate = bytes as f64 / seconds;
        // What waited for a processor says nothing of the link, but that it carries as much.
        let held_back = busy_s > 0.0 && busy_s < BUSY * seconds;
        let waits_s = choice.map_or(f64::INFINITY, Choice::beside_bytes_s);
        if held_back && (bytes >= LARGE_BYTES || bytes >= FAIR_BYTES && waits_s < LITTLE * seconds) {
            self.rates.note(rate);
        } else if bytes >= LARGE_BYTES {
            self.most_rate = self.most_rate.max(rate);
        }
        // The first by an algorithm makes buffers, and finds connections cold.
        let Some(choice) =
            choice.filter(|one| std::mem::replace(&mut self.warm[one.algorithm as usize], true))
        else {
            return;
        };
        let (work_s, predicted_s) = (choice.prediction.work_s(), choice.prediction.seconds());
        if bytes >= LARGE_BYTES && work_s > 0.0 && busy_s > 0.0 {
            self.cores = mix(self.cores, work_s / busy_s);
        }
        // The link was taken for another one: that is mended by its rate.
        let profile = &choice.profile;
        let mistaken_s = match profile.call_s > 0.0 || self.rate() == 0.0 {
            true => 0.0,
            false => (bytes as f64 / profile.rate - bytes as f64 / self.rate()).abs(),
        };
        if predicted_s > 0.0 && mistaken_s < LITTLE * seconds {
            self.corrections.note(choice.algorithm, predicted_s, seconds);
        }
    }

    /// Bytes a second of the link; 0 where nothing was seen yet.
    fn rate(&self) -> f64 {
        self.rates.median().max(self.most_rate)
    }
}

/// What all ranks go by, and what `default` has that is the same on all of them. `said(k)`: what each of them said in that
/// place of its [`Observed::profile_words`].
///
/// Of numbers that change slowly the medians; of the last calls' times the longest, for a call is done when its last rank
/// is, and then the median.
pub(crate) fn agreed_profile(default: Profile, said: impl Fn(usize) -> Vec<f64>) -> Profile {
    let longest = |turn: usize| largest(said(PROFILE_WORDS - TURNS + turn));
    let seen: Vec<f64> = (0..TURNS).map(longest).filter(|s| *s > 0.0).collect();
    let waits_s = if seen.is_empty() { median(said(2)) } else { median(seen) };
    let profile = Profile { rate: median(said(0)), cores: median(said(1)), ..default };
    match default.call_s > 0.0 {
        true => Profile { call_s: waits_s, ..profile },
        false => Profile { latency_s: waits_s, ..profile },
    }
}

/// The same with corrections of algorithms, from [`Observed::words`].
pub(crate) fn agreed(default: Profile, said: impl Fn(usize) -> Vec<f64>) -> (Profile, Corrections) {
    (agreed_profile(default, &said), Corrections::agreed(|k| said(PROFILE_WORDS + k)))
}

/// What one blocking call took on this rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) seconds: f64,
    /// Time on a processor, or ready but waiting for one.
    pub(crate) busy_s: f64,
}

/// What a small call shows of waiting: seconds until a message is there, and seconds beside all that is predicted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Turn {
    latency_s: f64,
    call_s: f64,
}

/// Which of them is learned: between hosts the latency, among ranks that share processors the seconds beside.
fn waits(profile: &Profile) -> f64 {
    if profile.call_s > 0.0 { profile.call_s } else { profile.latency_s }
}

/// A call's beginning.
pub(crate) struct Stopwatch {
    start: Instant,
    busy_s: Option<f64>,
}

impl Stopwatch {
    /// `closely`: with the time on processors, which takes some microseconds.
    pub(crate) fn start(closely: bool) -> Stopwatch {
        Stopwatch { busy_s: closely.then(busy_s).flatten(), start: Instant::now() }
    }

    pub(crate) fn stop(self) -> Seen {
        let seconds = self.start.elapsed().as_secs_f64();
        let busy_s = self.busy_s.and_then(|before| Some(busy_s()? - before)).unwrap_or(0.0);
        Seen { seconds, busy_s }
    }
}

/// Seconds that this thread has run, or was ready to run but waited; `None` where the system does not say.
fn busy_s() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let mut numbers = text.split_whitespace().map_while(|word| word.parse::<f64>().ok());
    Some(numbers.next()? + numbers.next()?).map(|nanoseconds| nanoseconds / 1e9)
}

/// Cores that this process may use.
pub(crate) fn own_cores() -> f64 {
    std::thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64)
}

/// What a link carries until a call has shown it: 1 Gbit/s.
const DEFAULT_RATE: f64 = 118e6;
