//! The choice among the algorithms that sum outer products: the numbers that ranks exchange before a sum, and their agreement.

use crate::{PROFILE_WORDS, agreed_profile, median};
use skyphos_plan::outer::Spread;
use skyphos_plan::{OuterPrediction, OuterRoute, OuterWork, Profile};

/// Allgathers of factors, in the order of preference where predictions are equal.
pub const SPREADS: [Spread; 3] = [Spread::Direct, Spread::Ring, Spread::Doubling];

/// Processor times of a rank's products and passes, and its share of a core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OuterRates {
    /// Seconds of a multiply-add.
    pub product_s: f64,
    /// Seconds per byte of one pass over an array.
    pub pass_byte_s: f64,
    /// Additional seconds per byte of fresh memory.
    pub fresh_byte_s: f64,
    /// Share of a core.
    pub core_share: f64,
}

/// A rank's numbers in the exchange before a sum.
#[derive(Clone, Debug, PartialEq)]
pub struct OuterNumbers {
    /// Number of pairs.
    pub pairs: usize,
    /// Whether the result's memory is fresh: then it must fit in `free_bytes` too.
    pub fresh: bool,
    /// Free bytes of the rank's host; infinite for a sum that is too small to matter.
    pub free_bytes: f64,
    /// Processor times.
    pub rates: OuterRates,
    /// The profile ([`crate::Observations::profile_words`]).
    pub profile: Vec<f64>,
}

impl OuterNumbers {
    /// The words of the message.
    pub fn words(&self) -> Vec<f64> {
        let OuterRates { product_s, pass_byte_s, fresh_byte_s, core_share } = self.rates;
        let fresh = f64::from(u8::from(self.fresh));
        let own =
            [self.pairs as f64, fresh, self.free_bytes, product_s, pass_byte_s, fresh_byte_s, core_share];
        own.into_iter().chain(self.profile.iter().copied()).collect()
    }

    /// The numbers in a message; `None` for a wrong number of words.
    pub fn from_words(words: &[f64]) -> Option<OuterNumbers> {
        let (own, profile) = words.split_first_chunk::<7>()?;
        let [pairs, fresh, free_bytes, product_s, pass_byte_s, fresh_byte_s, core_share] = *own;
        (profile.len() == PROFILE_WORDS).then(|| OuterNumbers {
            pairs: pairs as usize,
            fresh: fresh > 0.0,
            free_bytes,
            rates: OuterRates { product_s, pass_byte_s, fresh_byte_s, core_share },
            profile: profile.to_vec(),
        })
    }
}

/// The size of a sum G of outer products, which is the same on all ranks.
#[derive(Clone, Copy, Debug)]
pub struct OuterSize {
    /// Rows of G.
    pub n: usize,
    /// Columns of G.
    pub m: usize,
    /// Bytes of a number on the wire.
    pub bytes: usize,
    /// Bytes of a number in a sum.
    pub sum_bytes: usize,
    /// Whether each rank keeps only its own rows.
    pub scatter: bool,
}

/// The planner's description of a sum, and the profile for it: medians of all ranks' numbers. `default`: a rank's profile before
/// any measurement.
pub fn agreed_work(size: OuterSize, all: &[OuterNumbers], default: Profile) -> (OuterWork, Profile) {
    let agreed = |number: fn(&OuterRates) -> f64| median(all.iter().map(|one| number(&one.rates)).collect());
    let profile = Profile {
        product_s: agreed(|rates| rates.product_s),
        cores: agreed(|rates| rates.core_share),
        ..agreed_profile(default, |k| all.iter().map(|one| one.profile[k]).collect())
    };
    let work = OuterWork {
        ranks: all.len() as u32,
        n: size.n,
        m: size.m,
        pairs: all.iter().map(|one| one.pairs).sum(),
        max_pairs: all.iter().map(|one| one.pairs).max().unwrap_or(0),
        bytes: size.bytes,
        sum_bytes: size.sum_bytes,
        scatter: size.scatter,
        fresh: all.iter().any(|one| one.fresh),
        pass_byte_s: agreed(|rates| rates.pass_byte_s),
        fresh_byte_s: agreed(|rates| rates.fresh_byte_s),
    };
    (work, profile)
}

/// Predictions of all candidates, fastest first. Those that do not fit memory come last: if none fits, the error is about the
/// fastest.
pub fn ranked_by_fit(
    work: &OuterWork,
    profile: &Profile,
    candidates: &[OuterRoute],
    fits: impl Fn(OuterRoute) -> bool,
) -> Vec<OuterPrediction> {
    let mut ranked = work.ranked(profile, candidates);
    ranked.sort_by_key(|one| !fits(one.route));
    ranked
}

/// The size of each group, if all groups have the same size. `groups`: the group of each rank.
pub fn even_group_size(groups: &[u32]) -> Option<u32> {
    let mut counts = vec![0u32; groups.len()];
    groups.iter().for_each(|group| counts[*group as usize] += 1);
    let mut sizes = counts.into_iter().filter(|count| *count > 0);
    let first = sizes.next()?;
    sizes.all(|size| size == first).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Observations;

    fn numbers(pairs: usize, product_s: f64, fresh: bool) -> OuterNumbers {
        let default = Profile::one_host(2, 1.0);
        OuterNumbers {
            pairs,
            fresh,
            free_bytes: 1e9,
            rates: OuterRates { product_s, pass_byte_s: 1e-10, fresh_byte_s: 2e-10, core_share: 0.5 },
            profile: Observations::default().profile_words(default).to_vec(),
        }
    }

    #[test]
    fn messages_are_decoded() {
        let one = numbers(3, 1e-9, true);
        assert_eq!(OuterNumbers::from_words(&one.words()), Some(one.clone()));
        assert_eq!(OuterNumbers::from_words(&one.words()[1..]), None);
        assert_eq!(OuterNumbers::from_words(&[]), None);
    }

    #[test]
    fn ranks_agree_on_medians_and_candidates_that_fit() {
        let all = [numbers(3, 1e-9, false), numbers(0, 3e-9, true), numbers(5, 2e-9, false)];
        let size = OuterSize { n: 100, m: 50, bytes: 4, sum_bytes: 8, scatter: false };
        let (work, profile) = agreed_work(size, &all, Profile::one_host(3, 1.0));
        assert_eq!((work.ranks, work.pairs, work.max_pairs, work.fresh), (3, 8, 5, true));
        assert_eq!((profile.product_s, profile.cores, work.pass_byte_s), (2e-9, 0.5, 1e-10));
        let candidates = SPREADS.map(OuterRoute::Allgather);
        let all_fit = ranked_by_fit(&work, &profile, &candidates, |_| true);
        assert!(all_fit.windows(2).all(|pair| pair[0].duration <= pair[1].duration));
        let slowest = all_fit[2].route;
        let one_fits = ranked_by_fit(&work, &profile, &candidates, |route| route == slowest);
        assert_eq!(one_fits[0].route, slowest);
    }

    #[test]
    fn groups_are_even_or_not() {
        for (groups, size) in
            [(&[0, 0, 2, 2][..], Some(2)), (&[0, 1, 1], None), (&[0, 0, 0], Some(3)), (&[], None)]
        {
            assert_eq!(even_group_size(groups), size, "{groups:?}");
        }
    }
}
