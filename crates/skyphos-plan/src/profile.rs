//! The profile of a machine and its network: the numbers behind all predictions.
//!
//! A message costs latency and time per byte (α-β). The processors at its ends spend an overhead per frame and per byte
//! (LogGP's o and O, Ino et al. 2001), and the kernels time per entry. A rank that shares its cores has a fraction of one.

/// Seconds, bytes and fractions, from one rank's view. All ranks of a call must use the same numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Profile {
    /// Seconds until a small message arrives (α).
    pub latency_s: f64,
    /// Seconds that each message occupies a rank's link, whatever its length; they make small messages expensive.
    pub message_s: f64,
    /// Bytes a second of a rank's link, in each direction (1/β).
    pub rate: f64,
    /// Fraction by which each further sender lengthens a transfer to the same rank.
    pub incast: f64,
    /// Factor of `rate` where each rank sends only to the next one in the order of hosts and racks: then links between racks
    /// carry a single stream.
    pub ring_gain: f64,
    /// A rank's share of a core, relative to the core that the times below were measured on.
    pub cores: f64,
    /// Processor time of a frame at either end.
    pub frame_s: f64,
    /// Processor time of a byte at either end: copies, checksum, and the kernel's work.
    pub byte_s: f64,
    /// `byte_s` of arrays, which are sent in whole chunks and without an intermediate copy.
    pub array_byte_s: f64,
    /// Processor time of the kernels.
    pub kernels: Kernels,
    /// Processor time of plans.
    pub rows: RowKernels,
    /// Processor time of a float64 multiply-add in a product of matrices; a float32 one takes half of it.
    pub product_s: f64,
    /// Processor time of waiting for a message: wake-up and context switches.
    pub wake_s: f64,
    /// Additional seconds of each call: the time until all ranks that share a processor have run once.
    pub call_s: f64,
}

/// Processor time of plans' kernels, on rows and index sets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowKernels {
    /// Gathering a row into a message, or scattering it from one; `byte_s` is added per byte.
    pub gather_s: f64,
    /// Adding a row through a map.
    pub fold_s: f64,
    /// Gathering or scattering a byte of a row.
    pub byte_s: f64,
    /// Encoding an index for a configuration, or decoding it.
    pub set_code_s: f64,
    /// Merging an index with other ranks' indices, and finding its place in the union.
    pub set_join_s: f64,
}

impl Default for RowKernels {
    /// Measured on one core of a Zen 4 processor (`profile_reduce`).
    fn default() -> RowKernels {
        RowKernels {
            gather_s: 0.8e-9,
            fold_s: 1.2e-9,
            byte_s: 0.1e-9,
            set_code_s: 1.0e-9,
            set_join_s: 4.0e-9,
        }
    }
}

/// Processor time of the kernels, for rows of 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kernels {
    /// Encoding an entry.
    pub encode_s: f64,
    /// Placing a received entry in the result.
    pub place_s: f64,
    /// Merging an entry: a fixed part, and `merge_more_s` per source.
    pub merge_s: f64,
    /// See `merge_s`.
    pub merge_more_s: f64,
    /// Adding an entry by blocks.
    pub block_s: f64,
    /// Passing a position of a block, with or without an entry.
    pub position_s: f64,
    /// Reading, adding or copying a byte of a dense array.
    pub dense_byte_s: f64,
    /// Allocating a byte of a dense array, which takes page faults.
    pub fresh_byte_s: f64,
    /// Additional time of an entry that is read from, or written to, an array with a bitmap.
    pub bitmap_s: f64,
}

impl Default for Kernels {
    /// Measured by a probe on one core of a Zen 4 processor, and fitted to calls of 2 to 8 ranks (`bench/regret`).
    fn default() -> Kernels {
        Kernels {
            encode_s: 1.6e-9,
            place_s: 1.7e-9,
            merge_s: 1.0e-9,
            merge_more_s: 0.8e-9,
            block_s: 1.8e-9,
            position_s: 0.3e-9,
            dense_byte_s: 0.08e-9,
            fresh_byte_s: 0.1e-9,
            bitmap_s: 0.8e-9,
        }
    }
}

/// Seconds of a multiply-add on a core with 512-bit vectors (measured: 5e10 a second).
const PRODUCT_S: f64 = 20e-12;

/// Rate and latency of loopback TCP, between ranks of one host.
const HOST_RATE: f64 = 4e9;
const HOST_LATENCY_S: f64 = 30e-6;

impl Kernels {
    /// Factor of an entry's time for a row of `row_bytes` bytes, relative to 4 bytes: half of the time is the index's.
    pub fn weight(row_bytes: usize) -> f64 {
        0.5 + row_bytes as f64 / 8.0
    }

    /// Its numbers, in the order of the fields.
    pub fn numbers(&self) -> [f64; 9] {
        let k = self;
        let sparse = [k.encode_s, k.place_s, k.merge_s, k.merge_more_s, k.block_s, k.position_s];
        let dense = [k.dense_byte_s, k.fresh_byte_s, k.bitmap_s];
        std::array::from_fn(|i| sparse.get(i).copied().unwrap_or_else(|| dense[i - sparse.len()]))
    }

    /// The kernels of these numbers.
    pub fn from_numbers(numbers: [f64; 9]) -> Kernels {
        let [encode_s, place_s, merge_s, merge_more_s, block_s, position_s, dense @ ..] = numbers;
        let [dense_byte_s, fresh_byte_s, bitmap_s] = dense;
        Kernels {
            encode_s,
            place_s,
            merge_s,
            merge_more_s,
            block_s,
            position_s,
            dense_byte_s,
            fresh_byte_s,
            bitmap_s,
        }
    }
}

impl Profile {
    /// Length of [`Profile::numbers`].
    pub const LEN: usize = 26;

    /// Names of its numbers, in the order of [`Profile::numbers`].
    pub const NAMES: [&'static str; Profile::LEN] = [
        "latency_s",
        "message_s",
        "rate",
        "incast",
        "ring_gain",
        "cores",
        "frame_s",
        "byte_s",
        "array_byte_s",
        "encode_s",
        "place_s",
        "merge_s",
        "merge_more_s",
        "block_s",
        "position_s",
        "dense_byte_s",
        "fresh_byte_s",
        "bitmap_s",
        "gather_s",
        "fold_s",
        "row_byte_s",
        "set_code_s",
        "set_join_s",
        "product_s",
        "wake_s",
        "call_s",
    ];

    /// Its numbers, to send or store.
    pub fn numbers(&self) -> [f64; Profile::LEN] {
        let (p, r) = (self, &self.rows);
        let network = [p.latency_s, p.message_s, p.rate, p.incast, p.ring_gain];
        let processor = [p.cores, p.frame_s, p.byte_s, p.array_byte_s];
        let rows = [r.gather_s, r.fold_s, r.byte_s, r.set_code_s, r.set_join_s];
        let rest = [p.product_s, p.wake_s, p.call_s];
        let network = network.into_iter().chain(processor);
        let mut all = network.chain(p.kernels.numbers()).chain(rows).chain(rest);
        std::array::from_fn(|_| all.next().expect("as many as names"))
    }

    /// The profile of these numbers; `None` if one is out of range.
    pub fn from_numbers(numbers: [f64; Profile::LEN]) -> Option<Profile> {
        let [latency_s, message_s, rate, incast, ring_gain, cores, rest @ ..] = numbers;
        let [frame_s, byte_s, array_byte_s, rest @ ..] = rest;
        let [kernels @ .., gather_s, fold_s, row_byte_s, set_code_s, set_join_s, product_s, wake_s, call_s] =
            rest;
        let is_valid = numbers.iter().all(|x| x.is_finite() && *x >= 0.0)
            && rate > 0.0
            && ring_gain > 0.0
            && cores > 0.0;
        let kernels = Kernels::from_numbers(kernels);
        let rows = RowKernels { gather_s, fold_s, byte_s: row_byte_s, set_code_s, set_join_s };
        let network = Profile {
            latency_s,
            message_s,
            rate,
            incast,
            ring_gain,
            cores,
            frame_s,
            byte_s,
            array_byte_s,
            kernels,
            rows,
            product_s,
            wake_s,
            call_s,
        };
        is_valid.then_some(network)
    }

    /// Ranks on one host, connected by loopback sockets: only processor time counts.
    pub fn one_host(ranks: u32, cores: f64) -> Profile {
        let cores = (cores / f64::from(ranks.max(1))).min(1.0);
        Profile {
            latency_s: 20e-6,
            rate: HOST_RATE,
            incast: 0.0,
            ring_gain: 1.0,
            cores,
            frame_s: 1.5e-6,
            byte_s: 0.36e-9,
            array_byte_s: 0.15e-9,
            kernels: Kernels::default(),
            rows: RowKernels::default(),
            product_s: PRODUCT_S,
            message_s: 0.0,
            // Measured with small calls of 2, 4 and 8 ranks on 2 cores by all algorithms: 0.12, 0.35 and 1.3 ms.
            wake_s: 12e-6,
            call_s: 70e-6 / (cores * cores),
        }
    }

    /// This profile for messages between ranks of one host, which pass no link.
    pub fn within_host(&self) -> Profile {
        let rate = self.rate.max(HOST_RATE);
        Profile { rate, latency_s: self.latency_s.min(HOST_LATENCY_S), message_s: 0.0, incast: 0.0, ..*self }
    }

    /// This profile where each rank sends to the next one in the order of hosts and racks (`ring_gain`).
    pub fn in_ring(&self) -> Profile {
        Profile { rate: self.rate * self.ring_gain, ring_gain: 1.0, ..*self }
    }

    /// The profile of ranks on hosts of their own, in a network of `rate` bytes a second.
    pub fn network(rate: f64) -> Profile {
        Profile {
            latency_s: 50e-6,
            rate,
            incast: 0.0025,
            ring_gain: 1.0,
            cores: 1.0,
            frame_s: 3e-6,
            byte_s: 0.5e-9,
            array_byte_s: 0.25e-9,
            kernels: Kernels::default(),
            rows: RowKernels::default(),
            product_s: PRODUCT_S,
            message_s: 0.0,
            wake_s: 0.0,
            call_s: 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_restored_from_its_numbers() {
        let profile = Profile::network(125e6);
        assert_eq!(Profile::from_numbers(profile.numbers()), Some(profile));
        // Each field has its own index.
        let distinct: [f64; Profile::LEN] = std::array::from_fn(|k| k as f64 + 1.0);
        assert_eq!(Profile::from_numbers(distinct).map(|p| p.numbers()), Some(distinct));
        for (place, bad) in [(0, -1.0), (2, 0.0), (4, 0.0), (5, 0.0), (9, f64::NAN), (25, f64::INFINITY)] {
            let mut numbers = distinct;
            numbers[place] = bad;
            assert_eq!(Profile::from_numbers(numbers), None);
        }
    }
}
