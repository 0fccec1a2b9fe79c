//! Predicted time, bytes and rounds of a plan (Kylix §III), by degrees: configured once, reduced many times.
//!
//! A rank's rows between layers follow from Proposition 4.1 or any other model of unions. Each message occupies the link for a
//! fixed time, so small messages are expensive (§II and Figure 2).

use crate::predict::within;
use crate::profile::Profile;
use crate::stage::{Stage, exchange};
use skyphos_types::Seconds;

/// The sizes of a plan. All ranks must pass the same.
pub struct PlanWork<'a> {
    /// Ranks in the group.
    pub ranks: u32,
    /// Size of the index space.
    pub n: u64,
    /// Bytes of an index's values.
    pub row_bytes: usize,
    /// Indices in the union of m ranks' out-sets; for m = 1 the mean.
    pub out: &'a dyn Fn(f64) -> f64,
    /// Indices in the union of m ranks' in-sets.
    pub want: &'a dyn Fn(f64) -> f64,
    /// Whether each rank's in-set is its out-set.
    pub same: bool,
    /// Ranks of each host; the order in which layers are formed keeps them together.
    pub ranks_per_host: u32,
}

/// The predicted cost of one choice of degrees, on one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanPrediction {
    /// The degrees.
    pub degrees: Vec<u32>,
    /// Stages of the configuration: each layer down, then up again.
    pub configure: Vec<Stage>,
    /// Stages of a reduction: each layer down, then up again.
    pub reduce: Vec<Stage>,
}

impl PlanPrediction {
    /// Seconds of a reduction.
    pub fn reduce_duration(&self) -> Seconds {
        Seconds(self.reduce.iter().map(|stage| stage.seconds).sum())
    }

    /// Seconds of the configuration.
    pub fn configure_duration(&self) -> Seconds {
        Seconds(self.configure.iter().map(|stage| stage.seconds).sum())
    }
}

/// Approximate bytes of an encoded set of `indices` indices: blocks of 64 neighbours, with a mask or a few bytes each.
fn set_bytes(indices: f64, positions: f64) -> f64 {
    let density = (indices / positions.max(1.0)).clamp(0.0, 1.0);
    let blocks = positions / 64.0 * (1.0 - (1.0 - density).powi(64));
    // As `skyphos_kernels::encoded_bytes` has them, for ids of 4 bytes at most.
    (blocks * 11.0).min(indices * 4.0).min(positions / 8.0)
}

impl PlanWork<'_> {
    /// Predicts these degrees.
    pub fn predict(&self, profile: &Profile, degrees: &[u32]) -> PlanPrediction {
        let (k, n, row) = (&profile.rows, self.n as f64, self.row_bytes as f64);
        let row_s = |touched_s: f64| touched_s + row * k.byte_s;
        let (mut down, mut up, mut sets, mut answers) = (vec![], vec![], vec![], vec![]);
        let mut joined = 1.0;
        for degree in degrees {
            let d = f64::from(*degree);
            let profile = &within(profile, self.ranks_per_host, (joined * d) as u32);
            let share = (d - 1.0) / d;
            let per_rank = |union: &dyn Fn(f64) -> f64| union(joined).clamp(0.0, n) / joined;
            let (out, want) = (per_rank(self.out), per_rank(self.want));
            // Rows are gathered into messages, then folded, including this rank's own.
            let compute_s = out * (share * row_s(k.gather_s) + row_s(k.fold_s));
            down.push(exchange(out * share * row, d - 1.0, compute_s).timed(profile));
            let compute_s = want * (1.0 + share) * row_s(k.gather_s);
            up.push(exchange(want * share * row, d - 1.0, compute_s).timed(profile));
            let both = if self.same { out } else { out + want };
            let positions = n / joined;
            let bytes = set_bytes(out, positions) + if self.same { 0.0 } else { set_bytes(want, positions) };
            let compute_s = both * (share * k.set_code_s + k.set_join_s);
            sets.push(exchange(bytes * share, d - 1.0, compute_s).timed(profile));
            answers.push(exchange(9.0 * (d - 1.0), d - 1.0, 0.0).timed(profile));
            joined *= d;
        }
        let down_and_up =
            |down: Vec<Stage>, up: Vec<Stage>| down.into_iter().chain(up.into_iter().rev()).collect();
        PlanPrediction {
            degrees: degrees.to_vec(),
            configure: down_and_up(sets, answers),
            reduce: down_and_up(down, up),
        }
    }

    /// Predicts these choices of degrees, the fastest reduction first.
    pub fn all(&self, profile: &Profile, degrees: &[Vec<u32>]) -> Vec<PlanPrediction> {
        let mut all: Vec<PlanPrediction> = degrees.iter().map(|d| self.predict(profile, d)).collect();
        all.sort_by(|a, b| a.reduce_duration().total_cmp(&b.reduce_duration()));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::density::PowerLaw;
    use crate::predict::factorisations;

    /// Kylix §VII-A: Twitter's followers' graph on 64 machines. Its links reach half of their rate at messages of some MB
    /// (Figure 2), so neither 64 messages nor six layers are best.
    #[test]
    fn costly_messages_give_layers_of_mixed_degrees() {
        let law = PowerLaw::from_density(60_000_000, 0.21, 1.1);
        let union = |m: f64| law.indices_per_rank(m) * m;
        let work = PlanWork {
            ranks: 64,
            n: 60_000_000,
            row_bytes: 4,
            out: &union,
            want: &union,
            same: true,
            ranks_per_host: 1,
        };
        let costly = Profile { message_s: 4e-3, ..Profile::network(1.25e9) };
        let best = &work.all(&costly, &factorisations(64))[0];
        assert!(
            best.degrees.len() > 1 && best.degrees[0] >= *best.degrees.last().unwrap(),
            "{:?}",
            best.degrees
        );
        let free = Profile { message_s: 0.0, latency_s: 0.0, frame_s: 0.0, incast: 0.0, ..costly };
        assert_eq!(work.all(&free, &factorisations(64))[0].degrees, [64]);
        // The rows of Proposition 4.1, down and up.
        let two = work.predict(&free, &[8, 8]);
        assert!((two.reduce[0].sent - law.indices_per_rank(1.0) * 7.0 / 8.0 * 4.0).abs() < 1.0);
        assert!((two.reduce[1].sent - law.indices_per_rank(8.0) * 7.0 / 8.0 * 4.0).abs() < 1.0);
        assert_eq!(two.reduce[0].sent, two.reduce[3].sent);
    }
}
