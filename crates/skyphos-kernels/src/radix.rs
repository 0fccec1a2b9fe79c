//! Least-significant-digit radix sort of packed words: stable, a few passes over memory.
//!
//! A word is (key << 32 | payload); words are sorted by their keys only. The digits are as even as
//! possible and at most 11 bits (2,048 counters stay in the L1 cache).

const DIGIT_BITS: u32 = 11;

/// Sorts `words` by their bits 32 .. 32 + `key_bits`, keeping the order of equal keys.
pub(crate) fn sort_by_key(words: &mut Vec<u64>, key_bits: u32) {
    debug_assert!(key_bits <= 32);
    // For fewer words a comparison sort is faster, since the counters cost more than the words.
    if words.len() < 256 {
        words.sort_by_key(|w| w >> 32);
        return;
    }
    let passes = key_bits.div_ceil(DIGIT_BITS).max(1);
    let digit = key_bits.div_ceil(passes).max(1);
    let mut from = std::mem::take(words);
    let mut to = vec![0u64; from.len()];
    for pass in 0..passes {
        let shift = 32 + pass * digit;
        let mask = (1u64 << digit) - 1;
        let mut next = vec![0u32; 1 << digit];
        for w in &from {
            next[(w >> shift & mask) as usize] += 1;
        }
        let mut start = 0;
        for count in &mut next {
            start += std::mem::replace(count, start);
        }
        for w in &from {
            let slot = &mut next[(w >> shift & mask) as usize];
            to[*slot as usize] = *w;
            *slot += 1;
        }
        std::mem::swap(&mut from, &mut to);
    }
    *words = from;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn words_are_sorted_stably(keys in prop::collection::vec(any::<u32>(), 0..3000), bits in 1u32..=32) {
            let mask = (1u64 << bits) - 1;
            let mut words: Vec<u64> =
                keys.iter().enumerate().map(|(k, key)| (u64::from(*key) & mask) << 32 | k as u64).collect();
            let mut want = words.clone();
            want.sort_by_key(|w| w >> 32);
            sort_by_key(&mut words, bits);
            prop_assert_eq!(words, want);
        }
    }
}
