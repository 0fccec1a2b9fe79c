//! Every constant of the tuner, with the measurement or decision that gave it.

use skyphos_types::{Bytes, Seconds};

/// The constants of the tuner. All ranks of a group use the same ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TuningParameters {
    /// Variants tried in one round, at most. Decision 0013: four kinds cover all predictions within `short_trial_factor`.
    pub max_variants: usize,
    /// Calls by each variant in a round, where a call is short; a long call is tried once. Decision 0013.
    pub short_call_trials: usize,
    /// Duration below which a call is short: other jobs disturb it by as much as it takes. Decision 0013: with 8 ranks on 2
    /// cores a call of 10 ms may take 44; with a limit of 2 ms, one such call decided for a variant of 28 ms instead of 12.
    pub short_call: Seconds,
    /// A short call's variant is tried if its predicted time is at most this factor times the best one's. Decision 0013:
    /// predictions are off by a fifth and more (36 cases on one host).
    pub short_trial_factor: f64,
    /// The same factor for long calls, whose predictions are closer. Decision 0013.
    pub long_trial_factor: f64,
    /// A variant whose measured time exceeds the best one's by this factor is not tried again. Decision 0013.
    pub retry_factor: f64,
    /// Variants tried again after the first round, at most. Decision 0013: with four, most of the first 20 calls were trials.
    pub max_retries: usize,
    /// Rounds of trials of short calls. Decision 0013: with a single round, one acknowledgement that was 40 ms late decided the choice.
    pub short_rounds: u32,
    /// Rounds of trials of long calls. Decision 0013.
    pub long_rounds: u32,
    /// The link's rate was mistaken if the measured one differs by this factor, and slow variants are predicted anew.
    /// Chosen: beyond the error of predictions (`short_trial_factor`).
    pub link_factor: f64,

    /// Calls after the first survey until the next one. Decision 0009.
    pub first_interval: u32,
    /// Calls between two surveys, at most; each survey that confirms the choice doubles the interval. Decision 0009.
    pub last_interval: u32,
    /// Fraction by which a result's entries may differ before the data counts as changed. Decision 0009.
    pub drift: f64,
    /// Changes in a row after which every call surveys, until the data has stayed unchanged as many times. Decision 0013: where
    /// dense calls alternated with calls of a single entry, the small ones took 35 to 55 ms instead of 0.3.
    pub max_changes: u32,
    /// Factor by which `expected_nnz` may miss the result before a survey replaces it. Chosen: the choice of an algorithm
    /// seldom depends on less.
    pub hint_factor: f64,
    /// Bytes of a dense array, at most, that `expected_nnz` alone may allocate, without a survey of the ranks. Chosen: a wrong
    /// hint must not exhaust the memory.
    pub max_hinted_bytes: u64,
    /// Kinds of calls in the cache, at most; the one that was called longest ago is dropped. Chosen: about 10 KB each, with
    /// the bounds of 1,000 ranks.
    pub max_kinds: usize,

    /// Bytes of a vector (mean over the ranks) up to which only the number of rounds counts. Decision 0010.
    pub rounds_only_bytes: f64,
    /// Alternatives that a choice reports, at most. Chosen: as many lines as `explain` shows.
    pub max_alternatives: usize,
    /// Entries per position above which adding into a dense array beats collecting entries. Measured by `kernel_rates
    /// reduce`: 0.25 to 0.35 for 4-byte values.
    pub dense_crossover: f64,
    /// Bytes of an array from which the MPI library's own allreduce may be chosen. Decision 0018: MPICH's takes 0.8
    /// of our time at 64 KB between hosts.
    pub native_bytes: usize,

    /// Bytes of a call's input from which its processor time is measured as well. Chosen: reading `schedstat` takes some
    /// microseconds, more than it reveals of a smaller call.
    pub timed_bytes: usize,
    /// Bytes moved from which a call reveals the link's rate and the share of a core. Decision 0010.
    pub large_call: Bytes,
    /// Bytes moved from which a call reveals the link's rate if little else takes time (`minor_fraction`). Chosen: a quarter of
    /// `large_call`.
    pub medium_call: Bytes,
    /// Bytes moved below which a call reveals only the latency. Decision 0010, as `rounds_only_bytes`.
    pub small_call: Bytes,
    /// Fraction of a call's time that may be attributed to the wrong cause. Chosen: the size of `drift`.
    pub minor_fraction: f64,
    /// Weight of the newest call in the moving average of the share of a core. Chosen: five calls make 83 % of it.
    pub newest_weight: f64,
    /// Fraction of its time that a call may keep its processor busy and still be limited by the link. Decision 0010: the
    /// processor was idle for a third.
    pub busy_fraction: f64,
    /// Small calls whose latency is remembered. Decision 0013: each call's longest latency over the ranks, then the median.
    pub small_calls: usize,
    /// Bytes a second of a link until a call has shown its rate: 1 Gbit/s. Decision 0010.
    pub default_rate: f64,

    /// Calls of an algorithm whose correction is remembered. Decision 0013: with a mean, one call of 66 ms among those of
    /// 14 ms affected ten predictions; the median of five hides it.
    pub recent_calls: usize,
    /// The largest factor by which a prediction is corrected. Chosen: a larger error is a disturbance.
    pub max_correction: f64,
    /// Factor in predicted time at which a correction counts 1/e. Decision 0013: corrections of 2 ms calls misled those of 16 ms.
    pub correction_reach: f64,
    /// Corrections of calls whose predicted times differ by at most this factor share one median. Chosen: the root of
    /// `correction_reach`.
    pub same_length: f64,

    /// Windows of the hashed index range of which each rank sends a sample of its blocks, to choose a plan's layers.
    /// Chosen: eight places of the range are as good as a random draw, because the order is that of a hash.
    pub sample_windows: usize,
    /// Blocks of all ranks together in one window; each rank sends at most `window_blocks` of them. Chosen: 2 KB a rank
    /// (docs/known-limits.md).
    pub window_blocks_of_all: usize,
    /// Blocks of one rank in one window, at most. See `window_blocks_of_all`.
    pub window_blocks: usize,
    /// An outer product of at least these bytes first reads the free memory, which takes 50 µs. Decision 0025.
    pub memory_check_bytes: f64,
}

impl TuningParameters {
    /// The values in use.
    pub const DEFAULT: TuningParameters = TuningParameters {
        max_variants: 4,
        short_call_trials: 2,
        short_call: Seconds(50e-3),
        short_trial_factor: 1.4,
        long_trial_factor: 1.15,
        retry_factor: 1.25,
        max_retries: 2,
        short_rounds: 3,
        long_rounds: 2,
        link_factor: 1.5,
        first_interval: 4,
        last_interval: 64,
        drift: 0.25,
        max_changes: 2,
        hint_factor: 2.0,
        max_hinted_bytes: 64 << 20,
        max_kinds: 64,
        rounds_only_bytes: 16.0 * 1024.0,
        max_alternatives: 6,
        dense_crossover: 0.3,
        native_bytes: 32 << 10,
        timed_bytes: 64 << 10,
        large_call: Bytes(256 << 10),
        medium_call: Bytes(64 << 10),
        small_call: Bytes(16 << 10),
        minor_fraction: 0.25,
        newest_weight: 0.3,
        busy_fraction: 0.7,
        small_calls: 8,
        default_rate: 118e6,
        recent_calls: 5,
        max_correction: 4.0,
        correction_reach: 4.0,
        same_length: 2.0,
        sample_windows: 8,
        window_blocks_of_all: 256,
        window_blocks: 8,
        memory_check_bytes: 64e6,
    };

    /// Whether a call of this duration is tried more often, because a small disturbance changes it much.
    pub fn is_short(&self, duration: Seconds) -> bool {
        duration < self.short_call
    }

    /// Rounds of trials of calls of this duration.
    pub fn rounds(&self, duration: Seconds) -> u32 {
        if self.is_short(duration) { self.short_rounds } else { self.long_rounds }
    }

    /// The factor of the best predicted time within which a variant is tried.
    pub fn trial_factor(&self, best: Seconds) -> f64 {
        if self.is_short(best) { self.short_trial_factor } else { self.long_trial_factor }
    }
}

impl Default for TuningParameters {
    fn default() -> TuningParameters {
        TuningParameters::DEFAULT
    }
}
