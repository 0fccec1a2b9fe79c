//! Random numbers as a function of their position alone: a counter-based generator.
//!
//! A 64-bit mixer (SplitMix64's) derives a key from seed, call, rank and bucket. A 32-bit mixer (`lowbias32`, from Wellons' search),
//! keyed once more between its rounds, derives a number from key and position. That takes two multiplications a number, in vectors
//! of any width, where Philox takes ten rounds. The numbers only need to be unbiased on average; they are not for cryptography.

/// Identity of a stream of random numbers. Streams of different calls, ranks or buckets are independent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Draw {
    /// Number of the call.
    pub call: u64,
    /// The rank, which is the same on all replicas.
    pub rank: u32,
    /// Number of the first bucket, for a part of a longer vector.
    pub first_bucket: u64,
}

/// Key of a bucket's random numbers.
#[derive(Clone, Copy)]
pub(super) struct Key([u32; 2]);

impl Key {
    /// The stream of a call on a rank.
    pub(super) fn of_call(seed: u64, draw: Draw) -> u64 {
        let seeded = mix(seed.wrapping_add(GOLDEN));
        let called = mix(seeded ^ draw.call.wrapping_mul(GOLDEN).wrapping_add(1));
        mix(called ^ u64::from(draw.rank).wrapping_mul(GOLDEN).wrapping_add(2))
    }

    #[inline(always)]
    pub(super) fn of_bucket(stream: u64, bucket: u64) -> Key {
        let key = mix(stream.wrapping_add(bucket.wrapping_mul(GOLDEN)));
        Key([key as u32, (key >> 32) as u32])
    }

    /// 32 random bits for a position in the bucket.
    #[inline(always)]
    pub(super) fn random(self, position: u32) -> u32 {
        let mut x = position.wrapping_mul(GOLDEN as u32).wrapping_add(self.0[0]);
        x = (x ^ x >> 16).wrapping_mul(0x7feb_352d) ^ self.0[1];
        x = (x ^ x >> 15).wrapping_mul(0x846c_a68b);
        x ^ x >> 16
    }
}

/// 2^64 divided by the golden ratio, an odd number. Neighbouring multiples of it differ in many bits.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The output function of SplitMix64.
#[inline(always)]
fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}
