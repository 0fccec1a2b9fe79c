//! Who talks to whom: the nested butterfly of mixed degrees (Kylix §II-A, §III-D).
//!
//! A rank is a number of mixed radix with one digit a layer, the first layer's digit least. In layer
//! i the d_i ranks that differ only in digit i talk to each other, and the one whose digit is c takes
//! part c of the range they share. One layer of degree P is the direct algorithm, all 2s the binary
//! butterfly. The first layer, which carries most, joins neighbouring ranks, which share a host.

use skyphos_types::{Error, Result};

/// The group of one rank in one layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbours {
    /// The ranks of the group, by digit; ascending.
    pub members: Vec<u32>,
    /// This rank's digit.
    pub me: usize,
}

/// Checks that degrees fit a group's size: their product is the size. No degrees at all stand for
/// one layer in which all talk to all.
pub fn check_degrees(degrees: &[u32], size: u32) -> Result<()> {
    let product = degrees.iter().try_fold(1u32, |p, d| p.checked_mul(*d));
    if degrees.is_empty() || product != Some(size) || degrees.contains(&0) {
        let text: Vec<_> = degrees.iter().map(u32::to_string).collect();
        return Err(Error::bad_input(format!(
            "degrees {} do not multiply to the group's size {size}",
            text.join("x")
        )));
    }
    Ok(())
}

/// The neighbours of a rank, layer by layer.
pub fn layers(degrees: &[u32], rank: u32) -> Vec<Neighbours> {
    let mut stride = 1;
    degrees
        .iter()
        .map(|d| {
            let digit = rank / stride % d;
            let first = rank - digit * stride;
            let members = (0..*d).map(|c| first + c * stride).collect();
            stride *= d;
            Neighbours { members, me: digit as usize }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_partition_the_ranks_and_agree() {
        for degrees in [vec![12], vec![3, 4], vec![2, 3, 2], vec![1, 12], vec![11]] {
            let size: u32 = degrees.iter().product();
            check_degrees(&degrees, size).unwrap();
            for rank in 0..size {
                for (k, group) in layers(&degrees, rank).iter().enumerate() {
                    assert_eq!(group.members[group.me], rank);
                    for peer in &group.members {
                        assert_eq!(layers(&degrees, *peer)[k].members, group.members);
                    }
                }
            }
        }
    }

    #[test]
    fn wrong_products_are_refused() {
        for degrees in [vec![], vec![3, 2], vec![0, 8], vec![1 << 31, 1 << 31, 2]] {
            assert!(check_degrees(&degrees, 8).unwrap_err().to_string().contains("size 8"));
        }
    }
}
