//! Encodings of the messages that rank 0 sends when a group starts: profile and cores, and the topology.

use skyphos_core::{Topology, host};
use skyphos_plan::Profile;
use skyphos_types::Result;

/// Cores that this process may use.
pub(crate) fn own_cores() -> f64 {
    host::cores() as f64
}

/// Bytes of [`encode_profile`].
pub(crate) const PROFILE_BYTES: usize = 8 * (Profile::LEN + 1);

/// Encodes a profile (zeros: none) and the cores of this machine.
pub(crate) fn encode_profile(profile: Option<Profile>) -> Vec<u8> {
    let numbers = profile.map_or([0.0; Profile::LEN], |profile| profile.numbers());
    numbers.into_iter().chain([own_cores()]).flat_map(f64::to_le_bytes).collect()
}

/// Decodes profile and cores from at least [`PROFILE_BYTES`] bytes.
pub(crate) fn decode_profile(bytes: &[u8]) -> (Option<Profile>, f64) {
    let number = |k: usize| f64::from_le_bytes(bytes[8 * k..][..8].try_into().expect("8 bytes"));
    // Zeros encode the absence of a profile.
    (Profile::from_numbers(std::array::from_fn(number)), number(Profile::LEN))
}

/// Encodes host and rack of each rank in 8 bytes.
pub(crate) fn encode_topology(topology: &Topology) -> Vec<u8> {
    let pairs = topology.hosts().iter().zip(topology.racks());
    pairs.flat_map(|(host, rack)| [host.to_le_bytes(), rack.to_le_bytes()]).flatten().collect()
}

/// Decodes a topology.
pub(crate) fn decode_topology(bytes: &[u8]) -> Result<Topology> {
    let column = |from: usize| -> Vec<u32> {
        let pairs = bytes.chunks_exact(8);
        pairs.map(|pair| u32::from_le_bytes(pair[from..][..4].try_into().expect("4 bytes"))).collect()
    };
    Topology::new(&column(0), &column(4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip() {
        let topology = Topology::new(&[0, 0, 1, 1], &[0, 0, 0, 0]).unwrap();
        assert_eq!(decode_topology(&encode_topology(&topology)), Ok(topology));
        for profile in [Some(Profile::network(1e8)), None] {
            let bytes = encode_profile(profile);
            assert_eq!((bytes.len(), decode_profile(&bytes)), (PROFILE_BYTES, (profile, own_cores())));
        }
    }
}
