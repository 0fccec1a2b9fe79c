//! What rank 0 tells the others when a group begins, as bytes.

use crate::observe::own_cores;
use skyphos_core::Topology;
use skyphos_plan::Profile;
use skyphos_types::Result;

/// Bytes of [`start`].
pub(crate) const START_BYTES: usize = 8 * (Profile::LEN + 1);

/// Numbers of a profile (zeros: none), and the cores here.
pub(crate) fn start(profile: Option<Profile>) -> Vec<u8> {
    let numbers = profile.map_or([0.0; Profile::LEN], |profile| profile.numbers());
    numbers.into_iter().chain([own_cores()]).flat_map(f64::to_le_bytes).collect()
}

/// The profile and the cores in at least [`START_BYTES`].
pub(crate) fn read_start(bytes: &[u8]) -> (Option<Profile>, f64) {
    let number = |k: usize| f64::from_le_bytes(bytes[8 * k..][..8].try_into().expect("8 bytes"));
    // Zeros are no profile.
    (Profile::from_numbers(std::array::from_fn(number)), number(Profile::LEN))
}

/// Host and rack of each rank, 8 bytes a rank.
pub(crate) fn places(topology: &Topology) -> Vec<u8> {
    let pairs = topology.hosts().iter().zip(topology.racks());
    pairs.flat_map(|(host, rack)| [host.to_le_bytes(), rack.to_le_bytes()]).flatten().collect()
}

/// The topology of ranks at these places.
pub(crate) fn read_places(bytes: &[u8]) -> Result<Topology> {
    let half = |from: usize| -> Vec<u32> {
        let pairs = bytes.chunks_exact(8);
        pairs.map(|pair| u32::from_le_bytes(pair[from..][..4].try_into().expect("4 bytes"))).collect()
    };
    Topology::new(&half(0), &half(4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_survives_the_wire() {
        let topology = Topology::new(&[0, 0, 1, 1], &[0, 0, 0, 0]).unwrap();
        assert_eq!(read_places(&places(&topology)), Ok(topology));
        for profile in [Some(Profile::network(1e8)), None] {
            let bytes = start(profile);
            assert_eq!((bytes.len(), read_start(&bytes)), (START_BYTES, (profile, own_cores())));
        }
    }
}
